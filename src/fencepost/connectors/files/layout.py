"""What is in a folder, which files a reader may read, and how rows become a Parquet, JSON-lines or CSV file.

    <path>/_fencepost/identity                               a random id: this folder and no other
    <path>/_fencepost/owner                                  the job, sink and lineage that write here
    <path>/_fencepost/staged/<handle>.parquet                with visible="rename": pre-committed, not visible
    <path>/_fencepost/manifests/<generation>-<epoch>.json    the epoch is committed, with these files
    <path>/<handle>.parquet                                  data

Never writes to the folder, only to a file it is given: `session.py` does. Never buffers a whole epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fencepost.connectors.table.values import bindable, is_bytes, plain
from fencepost.contract import Asked, Examined, Holding, Instant, Rehearsal, Stray, alike, check_can_write, unheard
from fencepost.errors import FencepostError, OperatorNeeded, TargetRefused, Where
from fencepost.protocol.format import Damaged, StoredFormat
from fencepost.protocol.records import Epoch, Handle
from fencepost.store import LocalStore

OURS = "_fencepost"
IDENTITY = f"{OURS}/identity"
OWNER = f"{OURS}/owner"
STAGED = f"{OURS}/staged"
MANIFESTS = f"{OURS}/manifests"


MANIFEST = StoredFormat("The folder's manifest", 1)
OWNED = StoredFormat("The folder", 1)


@dataclass(frozen=True, slots=True)
class Manifest:
    """An epoch that counts, and its data files."""

    job: str
    sink: str
    lineage: str
    generation: int
    epoch: int
    handle: str
    """The ids of its handles, separated by spaces."""
    files: list[dict[str, Any]]
    """Each with name, rows, bytes and sum."""


@dataclass(frozen=True, slots=True)
class FolderOwner:
    """Who writes to a folder."""

    job: str
    sink: str
    lineage: str
    visible: str


def list_published(path: str | os.PathLike[str]) -> list[Path]:
    """The data files that a reader may read, in epoch order. Ignore all other files in the folder."""
    folder = Path(path)
    owner = read_owner(folder)
    if owner is None or owner.visible != "manifest":
        return sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith((".", "_")))
    manifests = sorted(manifest_names(folder), key=version_of)
    listed = (read_manifest(folder, name) for name in manifests)
    return [folder / file["name"] for manifest in listed if manifest is not None for file in manifest.files]


def manifest_names(folder: Path) -> list[str]:
    """The file names of all manifests."""
    names = LocalStore(folder).list(MANIFESTS)
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]


def stem(version: tuple[int, int]) -> str:
    """The name of an epoch's manifest, without `.json`."""
    generation, epoch = version
    return f"{generation}-{epoch:020d}"


def version_of(name: str) -> tuple[int, int]:
    """Generation and epoch, from a manifest's name."""
    generation, epoch, *_ = name.removesuffix(".json").split("-")
    return int(generation), int(epoch)


def read_manifest(folder: Path, name: str) -> Manifest | None:
    """The manifest of this name; None if there is none."""
    found: Manifest | None = _read(folder / MANIFESTS / name, MANIFEST, Manifest)
    return found


def read_owner(folder: Path) -> FolderOwner | None:
    """Who writes here; None if nobody does yet."""
    found: FolderOwner | None = _read(folder / OWNER, OWNED, FolderOwner)
    return found


def _read(path: Path, form: StoredFormat, kind: type[Any]) -> Any:
    try:
        return form.decode(kind, path.read_bytes(), error=TargetRefused)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise OperatorNeeded(
            "manifest_damaged",
            f"{path.name} cannot be trusted: {error}.",
            where=Where(path=str(path)),
            safe="Safe: the folder was not touched.",
            next="Restore the file from a backup of the folder, then start the job again.",
        ) from error


def examined(folder: Path, asked: Asked, kept: int | None) -> Examined:
    """What the folder holds of decided epochs; `kept`: how many manifests before the newest there are, None for all."""
    try:
        identity = (LocalStore(folder).read(IDENTITY) or b"").decode(errors="replace")
        owned = read_owner(folder)
        owner = "" if owned is None else owned.lineage
        found = {epoch: read_manifest(folder, f"{stem((asked.generation, epoch))}.json") for epoch in asked.epochs}
        # Listed after reading them: a manifest that was missing may have been pruned by a running job.
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
    except FencepostError as error:  # damaged, or written by a newer fencepost
        return unheard(asked, error.what)
    return Examined(
        holdings={epoch: Holding.MISSING if why else Holding.HELD for epoch, why in reasons.items()},
        identity=identity,
        strays=strays,
        why="" if newest is None else f"its newest manifest is {newest}",
        reasons={epoch: why for epoch, why in reasons.items() if why},
    )


def instant(folder: Path, asked: Asked, epoch: Epoch, *, by_manifest: bool) -> Instant:
    """The data files of all epochs up to this one: by the manifests, or where those are pruned, by the files' names."""
    try:
        identity = (LocalStore(folder).read(IDENTITY) or b"").decode(errors="replace")
        owned = read_owner(folder)
        if owned is not None and owned.lineage not in {asked.lineage, *asked.ancestors}:
            return Instant(why=f"it is written by lineage {owned.lineage}", identity=identity)
        names, gone = (_by_manifest if by_manifest else _by_name)(folder, asked, epoch)
    except (OSError, ValueError, KeyError) as error:
        return Instant.unheard(f"it cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})")
    except FencepostError as error:  # damaged, or written by a newer fencepost
        return Instant.unheard(error.what)
    files = [str(folder / name) for name in names]
    facts = {"files": files, "missing": gone}
    if gone:
        why = f"{gone[0]} is missing or changed" + (f", and {len(gone) - 1} more" if gone[1:] else "")
        return Instant(why=why, facts=facts, identity=identity)
    text = json.dumps(files, ensure_ascii=False)
    return Instant(text=text, exact=True, why=f"{len(files)} data files", facts=facts, identity=identity)


def _by_manifest(folder: Path, asked: Asked, epoch: Epoch) -> tuple[list[str], list[str]]:
    """Data files, and what is missing among them or among their manifests."""
    known = {f"{stem((asked.generation, n))}.json": ids_of(held) for n, held in asked.epochs.items() if n <= epoch}
    wanted = {*known, f"{stem((asked.generation, epoch))}.json"}
    listed = {name for name in manifest_names(folder) if version_of(name) <= (asked.generation, epoch)}
    names, gone = [], []
    for name in sorted(listed | wanted, key=version_of):
        manifest = read_manifest(folder, name)
        if manifest is None or manifest.handle != known.get(name, manifest.handle):
            gone.append(f"manifest {name}")
            continue
        names += [file["name"] for file in manifest.files]
        gone += [file["name"] for file in manifest.files if not _is_whole(folder / file["name"], file["bytes"])]
    return names, gone


def _by_name(folder: Path, asked: Asked, epoch: Epoch) -> tuple[list[str], list[str]]:
    """The same by the files' own names, `<lineage>-<writer>-<epoch>-<random>.<format>`, and the handles that are known.

    What an ancestor wrote was all there before our first epoch.
    """
    before = {lineage[:8] for lineage in asked.ancestors}
    found: list[tuple[bool, int, str]] = []
    for name in LocalStore(folder).list("."):
        lineage, *numbers = name.partition(".")[0].rsplit("-", 3)
        if len(numbers) != 3 or not numbers[1].isdigit():
            continue
        number, is_ours = int(numbers[1]), lineage == asked.lineage[:8]
        if lineage in before or (is_ours and number <= epoch):
            found.append((is_ours, number, name))
    known = {one.body["file"]: one.body["bytes"] for n, held in asked.epochs.items() if n <= epoch for one in held}
    gone = [name for name, size in known.items() if not _is_whole(folder / name, size)]
    if not gone and (True, epoch) not in {one[:2] for one in found}:
        gone.append(f"the file of epoch {epoch}")
    return [name for *_, name in sorted(found)], gone


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def rehearsed(folder: Path) -> Rehearsal:
    """What a start would find; raises `OSError` if it could not write there."""
    check_can_write(folder)
    identity = (LocalStore(folder).read(IDENTITY) or b"").decode(errors="replace")
    return Rehearsal(identity, () if identity else (f"folder {folder.name} with {OURS} in it",))


def _complaint(folder: Path, asked: Asked, epoch: Epoch, manifest: Manifest | None, kept: int | None) -> str:
    """Why an epoch does not count as held; "" if it does."""
    name = f"{stem((asked.generation, epoch))}.json"
    if manifest is None:
        return f"manifest {name} is missing"
    if manifest.handle != ids_of(asked.epochs[epoch]):
        return f"manifest {name} names another attempt"
    if kept is None:
        for file in manifest.files:
            if not _is_whole(folder / file["name"], file["bytes"]):
                return f"data file {file['name']} is missing or changed"
    return ""


def _stray(folder: Path, asked: Asked, newest: str) -> tuple[Stray, ...]:
    generation, number = version_of(newest)
    epoch = Epoch(number)
    manifest = read_manifest(folder, newest)
    if manifest is None or manifest.lineage != asked.lineage or generation != asked.generation:
        return ()
    is_older = bool(asked.epochs) and epoch < min(asked.epochs)
    if is_older or manifest.handle == ids_of(asked.epochs.get(epoch, ())):
        return ()
    text = f"generation {generation}, epoch {epoch} (manifest {newest})"
    return (Stray(text, frozenset({manifest.handle}), epoch),)


def ids_of(handles: tuple[Handle, ...]) -> str:
    """An epoch's handles, as its manifest names them."""
    return " ".join(handle.id for handle in handles)


GROUP_ROWS = 100_000
GROUP_BYTES = 32 << 20
"""A row group of Parquet is written as soon as it has this many; until then its rows are in memory."""


def write_parquet(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Parquet, with row groups of a useful size even if the batches are small."""
    with pa.parquet.ParquetWriter(file, schema) as out:
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                out.write_table(pa.Table.from_batches(waiting, schema))
                waiting, rows, size = [], 0, 0
        if waiting:
            out.write_table(pa.Table.from_batches(waiting, schema))


def write_json(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """One JSON object per line."""
    dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    for batch in batches:
        for row in zip(*map(plain, batch.columns), strict=True):
            file.write(dump(dict(zip(schema.names, row, strict=True))).encode() + b"\n")


def write_csv(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """CSV with a header; NULL is empty, an empty string is quoted.

    In a file with one column NULL is quoted too, like an empty string: readers skip an empty line, and with it the row.
    """
    columns = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
    is_alone = len(columns) == 1
    written = pa.schema([(name, pa.string()) for name in columns.names]) if is_alone else columns
    with pa.csv.CSVWriter(file, written) as out:
        for batch in batches:
            arrays = [
                array if array.type == field.type else pa.array(_csv_values(array), field.type)
                for array, field in zip(batch.columns, columns, strict=True)
            ]
            if is_alone:
                arrays = [arrays[0].cast(pa.string()).fill_null("")]
            out.write_batch(pa.RecordBatch.from_arrays(arrays, schema=written))


WRITE: Mapping[str, Callable[[IO[bytes], pa.Schema, Iterator[pa.RecordBatch]], None]] = {
    "parquet": write_parquet,
    "json": write_json,
    "csv": write_csv,
}


def _csv_type(kind: pa.DataType) -> pa.DataType:
    simple = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if simple else pa.int64() if pa.types.is_duration(kind) else pa.string()


def _csv_values(array: pa.Array) -> list[Any]:
    return plain(array) if is_bytes(array.type) else bindable(array)


def misfit(name: str, schema: pa.Schema) -> str:
    """Why rows of this schema cannot be written in this format, tried with zero rows; "" if they can."""
    twice = sorted({column for column in schema.names if schema.names.count(column) > 1})
    try:
        WRITE[name](BytesIO(), schema, iter(()))
    except (pa.ArrowException, ValueError) as error:
        return f"{name} cannot hold these types: {error}"
    if twice:
        return f"duplicate column names: {', '.join(map(repr, twice))}"
    return "" if schema.names else "it has no columns"
