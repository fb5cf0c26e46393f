"""What lies beside the data files of a folder, and which of them a reader may read.

    <path>/_fencepost/identity                               a random id: this folder and no other
    <path>/_fencepost/owner                                  the job, sink and lineage that write here
    <path>/_fencepost/staged/<handle>.parquet                rename: pre-committed, not visible
    <path>/_fencepost/manifests/<generation>-<epoch>.json    the epoch is committed, with these files
    <path>/<handle>.parquet                                  data

Only reads; `fencepost.sinks.files` writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fencepost.ledger import LocalStore
from fencepost.protocol.records import Epoch, Handle
from fencepost.sinks.holding import Asked, Examined, Holding, Stray, alike, unheard
from fencepost.sinks.rehearsal import Rehearsal, check_can_write

OURS = "_fencepost"
IDENTITY = f"{OURS}/identity"
OWNER = f"{OURS}/owner"
STAGED = f"{OURS}/staged"
MANIFESTS = f"{OURS}/manifests"


def published(path: str | os.PathLike[str]) -> list[Path]:
    """The data files that a reader may read, in the order of their epochs. Files not listed here do not count."""
    folder = Path(path)
    owner = read_json(folder / OWNER) or {}
    if owner.get("visible") != "manifest":
        return sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith((".", "_")))
    manifests = sorted(manifest_names(folder), key=version_of)
    listed = (read_json(folder / MANIFESTS / name) or {"files": []} for name in manifests)
    return [folder / file["name"] for manifest in listed for file in manifest["files"]]


def manifest_names(folder: Path) -> list[str]:
    """Every manifest."""
    names = LocalStore(folder).list(MANIFESTS)
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]


def stem(version: tuple[int, int]) -> str:
    """The name of an epoch's manifest, without its ending."""
    generation, epoch = version
    return f"{generation}-{epoch:020d}"


def version_of(name: str) -> tuple[int, int]:
    """Generation and epoch, from a manifest's name."""
    generation, epoch, *_ = name.removesuffix(".json").split("-")
    return int(generation), int(epoch)


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None if there is no such file."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found


def as_json(value: Mapping[str, Any]) -> bytes:
    """The same bytes for the same content."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def examined(folder: Path, asked: Asked, kept: int | None) -> Examined:
    """What the folder holds of decided epochs; of manifests, so many before the newest are kept, or all (None)."""
    try:
        identity = (LocalStore(folder).read(IDENTITY) or b"").decode(errors="replace")
        owner = str((read_json(folder / OWNER) or {}).get("lineage", ""))
        found = {
            epoch: read_json(folder / MANIFESTS / f"{stem((asked.generation, epoch))}.json") for epoch in asked.epochs
        }
        # Behind them: a running job may have pruned one that was not there.
        newest = max(manifest_names(folder), key=version_of, default=None)
        if owner and owner not in {asked.lineage, *asked.ancestors}:
            why = f"it is written by lineage {owner}"
            return Examined(holdings=alike(asked, Holding.UNKNOWN), identity=identity, stranger=owner, why=why)
        top = (-1, -1) if newest is None else version_of(newest)
        reasons = {}
        for epoch, manifest in found.items():
            was_pruned = kept is not None and (asked.generation, epoch) < (top[0], top[1] - kept)
            reasons[epoch] = "" if manifest is None and was_pruned else _complaint(folder, asked, epoch, manifest, kept)
        strays = () if newest is None else _stray(folder, asked, newest)
    except (OSError, ValueError, KeyError) as error:
        return unheard(asked, f"it cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})")
    return Examined(
        holdings={epoch: Holding.MISSING if why else Holding.HELD for epoch, why in reasons.items()},
        identity=identity,
        strays=strays,
        why="" if newest is None else f"its newest manifest is {newest}",
        reasons={epoch: why for epoch, why in reasons.items() if why},
    )


def rehearsed(folder: Path) -> Rehearsal:
    """What a start would find; `OSError` if it could not write there."""
    check_can_write(folder)
    identity = (LocalStore(folder).read(IDENTITY) or b"").decode(errors="replace")
    return Rehearsal(identity, () if identity else (f"folder {folder.name} and {OURS} in it",))


def _complaint(folder: Path, asked: Asked, epoch: Epoch, manifest: Mapping[str, Any] | None, kept: int | None) -> str:
    """Why an epoch does not count as held; "" if it does."""
    name = f"{stem((asked.generation, epoch))}.json"
    if manifest is None:
        return f"there is no manifest {name}"
    if manifest["handle"] != ids_of(asked.epochs[epoch]):
        return f"the manifest {name} names another attempt"
    if kept is None:
        for file in manifest["files"]:
            path = folder / file["name"]
            if not path.is_file() or path.stat().st_size != file["bytes"]:
                return f"the data file {file['name']} is missing or changed"
    return ""


def _stray(folder: Path, asked: Asked, newest: str) -> tuple[Stray, ...]:
    generation, number = version_of(newest)
    epoch = Epoch(number)
    manifest = read_json(folder / MANIFESTS / newest) or {}
    if manifest.get("lineage") != asked.lineage or generation != asked.generation:
        return ()
    is_older = bool(asked.epochs) and epoch < min(asked.epochs)
    if is_older or manifest["handle"] == ids_of(asked.epochs.get(epoch, ())):
        return ()
    text = f"generation {generation}, epoch {epoch} (manifest {newest})"
    return (Stray(text, frozenset({manifest["handle"]}), epoch),)


def ids_of(handles: tuple[Handle, ...]) -> str:
    """The handles of an epoch as its manifest names them."""
    return " ".join(handle.id for handle in handles)
