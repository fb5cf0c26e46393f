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
