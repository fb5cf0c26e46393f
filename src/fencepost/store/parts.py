"""Which files an epoch of a checkpoint depends on, and whether each is intact.

    metadata, offsets/, commits/          their text is in the ledger
    sources/<source>/<k>[.compact]        checksums in the ledger's decisions
    state/<operator>/<partition>[/<store>]/
        <N+1>_<id>.changelog … down to a snapshot <v>_<id>.zip, and the SSTs/ that it names       RocksDB
        <N+1>.delta … down to <v>.snapshot                                                        heap
        <N+1>_<generation>-<writer>.delta … down to <v>_<generation>-<writer>.snapshot            heap, remote
    state/…/_metadata, _stateSchema       the schemas of the state
    fencepost/departed                    the last offsets of sources that the job no longer reads
    fencepost/<lineage>/ledger, topics, plan

Only reads, perhaps while the job runs: a file that was listed may be gone a moment later, and is then reported missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from fencepost.errors import CheckpointRefused, Where
from fencepost.protocol.format import Damaged, digest, unseal
from fencepost.protocol.order import State
from fencepost.protocol.records import Decision, Epoch, decode
from fencepost.store import Place, RemotePath, Unanswered, each, place, savepoints, seen, store_at, way
from fencepost.store.base import STALE_S, record_name
from fencepost.store.ledger import read
from fencepost.store.notes import newest_plan, plan_name
from fencepost.store.path import Watch, scheme_of
from fencepost.store.spark_log import DEPARTED, SparkLog, metadata, owned, state_ids

Kind = Literal["log", "source", "state", "schema", "ledger", "topics", "plan", "sum", "other"]
OWN: tuple[Kind, ...] = ("ledger", "topics", "plan")
What = Literal["missing", "empty", "size", "sum", "no_sum", "unreadable", "extra"]

READ_AT_START = 200_000_000
"""The most bytes of state that a start reads; takes about two seconds."""
FETCHED_AT_START = 20_000_000
"""The same for a remote checkpoint."""
MAY_BE_EMPTY: tuple[Kind, ...] = ("other",)


@dataclass(frozen=True, slots=True)
class Part:
    """One file. Note: a part without a `known` checksum was not verified."""

    name: str
    kind: Kind
    sha256: str | None = None
    """According to the ledger."""
    size: int | None = None
    """According to the snapshot that names it."""
    side: str | None = None
    """The file beside it that holds its checksum."""
    spark_side: bool = False
    """That file is Spark's, in JSON; otherwise it is Hadoop's."""
    operator: str | None = None
    partition: int | None = None

    @property
    def known(self) -> bool:
        """Does it have a checksum? Our own files contain theirs, and a side file is compared with its main file."""
        return bool(self.sha256 or self.side) or self.kind in (*OWN, "sum")

    @property
    def by(self) -> str:
        """How it is checked, for display."""
        sides = "Spark's sum" if self.spark_side else "Hadoop's sum"
        if self.kind in (*OWN, "sum"):
            return "its file" if self.kind == "sum" else "itself"
        return "the ledger" if self.sha256 else sides if self.side else "its size" if self.size else "nothing"


@dataclass(frozen=True, slots=True)
class Problem:
    """A part that is missing or damaged."""

    name: str
    what: What
    text: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.name}: {self.text}"


def parts_of(root: Place, epoch: int, state: State | None = None) -> list[Part]:
    """Every file that `epoch` depends on; `CheckpointRefused` if there is no intact ledger.

    Passing `state` avoids reading the ledger again. A file that should exist is listed whether it does or not.
    """
    state = state or read(root)
    root = seen(place(root))
    found = {part.name: part for part in _all(root, Epoch(epoch), state)}
    sums = state.files
    return [replace(part, sha256=part.sha256 or sums.get(name)) for name, part in found.items()]


def problems(root: Place, parts: Iterable[Part], watch: Watch | None = None) -> list[Problem]:
    """What is missing, incomplete or changed among them; nothing if they all match their known checksums."""
    root = place(root)
    return [found for _, found in each(root, lambda part: examine(root, part), parts, watch) if found is not None]


def not_whole(root: Place, epoch: int, state: State, most: float = inf, watch: Watch | None = None) -> list[Problem]:
    """What is damaged and recovery cannot repair: state, schemas and source logs. It rewrites Spark's log by itself.

    If the state has more than `most` bytes, only its file names are checked.
    """
    root = seen(root)
    rests = [part for part in parts_of(root, epoch, state) if part.kind in ("state", "schema", "source")]
    if sum(sizes(root, rests).values()) <= most:
        return problems(root, rests, watch)
    gone = [part for part in rests if part.kind == "state" and not (root / part.name).is_file()]
    return problems(root, [*gone, *(part for part in rests if part.kind != "state")])


def check_newest(checkpoint: Place, state: State, said: str | None = None) -> None:
    """Refuse to start from a damaged newest epoch: Spark would notice late, and say less.

    Large state is left to Spark: it compares the same checksums, and reading it twice would take too long. `said` is
    the error that Spark failed with; if it is about state, all state is checked here, as Spark does not say what to do.
    """
    if state.newest is None or (said is not None and not re.search("STATE_STORE|[Cc]hecksum|CHECKSUM", said)):
        return
    at_start = FETCHED_AT_START if isinstance(checkpoint, RemotePath) else READ_AT_START
    wrong = not_whole(checkpoint, state.newest.epoch, state, at_start if said is None else inf)
    if wrong:
        kept = savepoints.of_family(savepoints.find(checkpoint)[0], state)
        offers = ", ".join(str(one.path) for one in reversed(kept)) or "none"
        cure = f"Run `fencepost doctor {checkpoint}` to see what can be repaired. Savepoints, newest first: {offers}."
        raise snapshot_lost(wrong, state.done_through, Where(job=state.lineage.job, path=str(checkpoint)), cure)


def snapshot_lost(wrong: Sequence[Problem], epoch: int, where: Where, cure: str) -> CheckpointRefused:
    """The error for an epoch that a job cannot continue from."""
    some = "; ".join(map(str, wrong[:3]))
    what = f"{len(wrong)} files that epoch {epoch} depends on are missing or changed: {some}."
    return CheckpointRefused("snapshot_lost", what, where=where, next=cure)


def sizes(root: Place, parts: Iterable[Part]) -> dict[tuple[str, int], int]:
    """Bytes of state by operator and partition."""
    found: Counter[tuple[str, int]] = Counter()
    for part in parts:
        if part.kind == "state" and part.operator is not None and part.partition is not None:
            path = root / part.name
            found[part.operator, part.partition] += path.stat().st_size if path.is_file() else 0
    return dict(found)


def state_sizes(root: Place, epoch: int, state: State) -> dict[tuple[str, int], int]:
    """The same of all that `epoch` depends on, without listing the ledger: that may have a hundred thousand records."""
    root = seen(place(root))
    return sizes(root, {part.name: part for part in _state_files(root, epoch, state)}.values())


def examine(root: Place, part: Part, to: BinaryIO | None = None) -> tuple[Measured | None, Problem | None]:
    """Read one part, once, in pieces; with `to`, copy it in the same pass."""
    path = root / part.name
    try:
        side = _side(root / part.side) if part.side else None
        every = int.from_bytes(side[4:8], "big") if side and not part.spark_side else 0
        measured = measure(path, crc32c=part.spark_side, hadoop_every=every if 0 < every <= 1 << 20 else None, to=to)
        return measured, next(_complaints(path, part, measured, side), None)
    except FileNotFoundError:
        return None, Problem(part.name, "missing", "it is missing")
    except Unanswered:
        raise  # it may be intact: nobody knows
    except OSError as error:
        return None, Problem(part.name, "unreadable", f"it cannot be read ({error.strerror})")


def _side(path: Place) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _complaints(path: Place, part: Part, measured: Measured, side: bytes | None) -> Iterator[Problem]:
    """In order of preference: only the first is reported."""
    if measured.size == 0 and part.kind not in MAY_BE_EMPTY:
        yield Problem(part.name, "empty", "it is empty")
    if part.size is not None and measured.size != part.size:
        yield Problem(part.name, "size", f"it has {measured.size} bytes, but the snapshot says {part.size}")
    if part.sha256 is not None and measured.sha256 != part.sha256:
        yield Problem(part.name, "sum", "it does not match the ledger")
    if part.kind == "ledger":
        yield from _not_the_record(path, part)
    elif part.kind in OWN:
        yield from _not_the_note(path, part)
    if part.side is not None and side is None:
        yield Problem(part.name, "no_sum", f"its checksum {PurePosixPath(part.side).name} is missing")
    elif part.side is not None and not (_as_spark_says if part.spark_side else _as_hadoop_says)(measured, side or b""):
        yield Problem(part.name, "sum", f"it does not match its checksum {PurePosixPath(part.side).name}")
    if path.suffix == ".zip" and tables_of(path) is None:
        yield Problem(part.name, "unreadable", "it is not a RocksDB snapshot")


def _as_spark_says(measured: Measured, side: bytes) -> bool:
    try:
        said = json.loads(side)
        return (said["algorithm"], said["value"] & 0xFFFFFFFF, said["mainFileSize"]) == (
            "CRC32C",
            measured.crc32c,
            measured.size,
        )
    except (ValueError, KeyError, TypeError):
        return False


def _as_hadoop_says(measured: Measured, side: bytes) -> bool:
    return side[:4] == HADOOP_MAGIC and side[8:] == measured.hadoop


def _not_the_record(path: Place, part: Part) -> Iterator[Problem]:
    """Check that this file still holds the record of its number; `read` verifies the whole chain."""
    try:
        record = decode(path.read_bytes())
    except Damaged as error:
        yield Problem(part.name, "sum", str(error))
        return
    if (f"{record.number:020d}", record.lineage) != (path.stem, path.parent.parent.name):
        yield Problem(part.name, "sum", f"it holds record {record.number} of lineage {record.lineage}")


def _not_the_note(path: Place, part: Part) -> Iterator[Problem]:
    try:
        note = unseal(path.read_bytes())
    except Damaged as error:
        yield Problem(part.name, "sum", str(error))
        return
    if part.kind == "plan" and part.name != plan_name(note.get("lineage", ""), note.get("writer", 0)):
        yield Problem(part.name, "sum", "it is that of another writer or lineage")


def _all(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    yield from _log_parts(root, epoch, state)
    yield from _source_parts(root, epoch, state)
    for part in _state_files(root, epoch, state):
        if part.side is not None:
            yield Part(part.side, "sum", operator=part.operator, partition=part.partition)
        yield part
    yield from _own_parts(root, epoch, state)


def _state_files(root: Place, epoch: int, state: State) -> Iterator[Part]:
    decided = {int(decision.epoch) for _, decision in state.decisions}
    return _state_parts(root, epoch, snapshots(root, state), _Noted(state.files, decided))


def snapshots(root: Place, state: State) -> dict[int, str]:
    """The text of `commits/<epoch>` for every known epoch: from the ledger if it has it, else from Spark's log."""
    log = SparkLog(store_at(root))
    decided = {int(decision.epoch): decision.snapshot for _, decision in state.decisions}
    others = [epoch for epoch in log.names("commits") if epoch not in decided]
    return {epoch: log.read("commits", Epoch(epoch)) or "" for epoch in others} | decided


def _log_parts(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    # Its text is always the same for a lineage, so its checksum need not be stored.
    yield from _with_side(root, Part("metadata", "log", sha256=digest(metadata(state.lineage_id))))
    log = SparkLog(store_at(root))
    decided: dict[int, Decision] = {int(decision.epoch): decision for _, decision in state.decisions}
    for folder in ("offsets", "commits"):
        # Spark needs the newest epoch and the one before; older ones are only history.
        wanted = {max(0, epoch - 1), int(epoch), *log.names(folder)}
        for number in sorted(number for number in wanted if number <= epoch):
            text = None
            if decision := decided.get(number):
                text = decision.offsets if folder == "offsets" else decision.snapshot
            known = None if text is None else digest(text.encode())
            yield from _with_side(root, Part(f"{folder}/{number}", "log", sha256=known))


def _source_parts(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    store = store_at(root)
    log = SparkLog(store)
    offsets = {d.epoch: d.offsets for _, d in state.decisions}.get(epoch) or log.read("offsets", epoch)
    later = {stray.name for stray in log.source_strays(offsets)}
    for source in store.list("sources"):
        entries = {n: f"sources/{source}/{name}" for n, name in log.source_entries(source)}
        entries = {n: name for n, name in entries.items() if name not in later}
        # Spark deletes an entry some time after a later one repeated it in a compact file.
        compact = max((n for n, name in entries.items() if name.endswith(".compact")), default=-1)
        surely, _ = log.ends(source, offsets)
        lost = {n: f"sources/{source}/{n}" for n in range(compact + 1, surely + 1) if n not in entries}
        for name in (entries | lost).values():
            yield from _with_side(root, Part(name, "source"))
    for name in store.list(DEPARTED):
        yield Part(f"{DEPARTED}/{name}", "source")


def _own_parts(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    lineage = state.lineage_id
    # If the epoch is not decided, its record was lost; the newest record leaves no gap when it goes missing.
    end = state.last + (2 if epoch >= state.next_epoch else 1)
    for number in (0, *range(max(1, state.oldest), end)):
        yield Part(record_name(lineage, number), "ledger")
    for topic in store_at(root).list(f"fencepost/{lineage}/topics"):
        yield Part(f"fencepost/{lineage}/topics/{topic}", "topics")
    plan = newest_plan(store_at(root), (lineage, *reversed(state.lineage.ancestors)))
    if plan is not None:
        yield Part(plan, "plan")


def _with_side(root: Place, part: Part) -> Iterator[Part]:
    """With Hadoop's side file, where plain Spark wrote one."""
    folder, _, name = part.name.rpartition("/")
    side = f"{folder}/.{name}.crc".lstrip("/")
    if (root / side).is_file():
        yield Part(side, "sum")
        part = replace(part, side=side)
    yield part


# The state of one epoch as files: what Spark would load for each store of each partition of each operator.
#
# Version v of a store is what epoch v-1 left. It is loaded from the newest snapshot at or below v, plus the changes of
# each version above that. With state of format 2 a file's name contains the id of the attempt that wrote it, and
# `commits/<v-1>` says which attempt counts; files of other attempts do not matter.

SNAPSHOTS = (".zip", ".snapshot")
CHANGES = (".changelog", ".delta")
BAD_JSON: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, TypeError, AttributeError)
BAD_ZIP: tuple[type[Exception], ...] = (*BAD_JSON, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""What Python raises for a damaged file."""
NOT_STORES = ("SSTs", "logs", "_metadata")


@dataclass(frozen=True, slots=True)
class _Noted:
    """What the ledger still says of state files: the sums of those that Spark wrote without any (4.0 does)."""

    files: Mapping[str, str]
    epochs: AbstractSet[int]
    """Whose decisions are there. Of versions before that, nobody knows whether they have to have sums."""


@dataclass(frozen=True, slots=True)
class _Store:
    """One store of one partition: its folder, and the attempt id that each version must have (format 1 has none)."""

    folder: Place
    operator: str
    partition: int
    ids: Mapping[int, str] | None
    noted: _Noted

    def part(self, name: str) -> Part:
        """One of its files."""
        return Part(name, "state", operator=self.operator, partition=self.partition)


def _state_parts(root: Place, epoch: int, snapshots: Mapping[int, str], noted: _Noted) -> Iterator[Part]:
    """Every state file that `epoch` depends on, whether it exists or not. `snapshots`: texts of `commits`, by epoch."""
    root = seen(root)
    by_epoch = {number: state_ids(text) for number, text in snapshots.items() if number <= epoch}
    newest = by_epoch.get(epoch, {})
    summed = _are_tables_summed(root)
    for operator in sorted({*newest, *_numbered(root / "state")}, key=int):
        folder = root / "state" / operator
        yield from _schemas(root, folder, epoch)
        if operator in newest:
            places = ((partition, at) for partition, ids in enumerate(newest[operator]) for at in range(len(ids)))
            stores = (_located(folder, partition, at, by_epoch, noted) for partition, at in places)
        else:
            partitions = sorted(map(int, _numbered(folder)))
            stores = (_Store(one, operator, n, None, noted) for n in partitions for one in _stores(folder / str(n)))
        # A snapshot is read to see which files it names: if they are remote, many at a time.
        for files in each(root, lambda store: list(_walk(root, store, epoch + 1, summed=summed)), stores):
            yield from files


def tables_of(snapshot: Place) -> dict[str, int] | None:
    """The tables that a RocksDB snapshot names, by relative path, with their sizes; None if it cannot be read."""
    try:
        with snapshot.open("rb") as file, zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:
                return None
            _, _, text = archive.read("metadata").decode().partition("\n")
        said = json.loads(text)
        tables = {f"SSTs/{file['dfsSstFileName']}": file["sizeBytes"] for file in said["sstFiles"]}
        return tables | {f"logs/{file['dfsLogFileName']}": file["sizeBytes"] for file in said.get("logFiles") or ()}
    except Unanswered:
        raise
    except BAD_ZIP:
        return None


def _located(
    folder: Place, partition: int, place: int, by_epoch: Mapping[int, dict[str, list[list[str]]]], noted: _Noted
) -> _Store:
    """The store of a partition (a join has several) that the ids at this place of the list belong to: the one that has
    files with these ids.
    """
    ids = {}
    for number, operators in by_epoch.items():
        partitions = operators.get(folder.name, [])
        if partition < len(partitions) and place < len(partitions[partition]):
            ids[number + 1] = partitions[partition][place]
    wanted = {f"{version}_{unique}" for version, unique in ids.items()}
    for store in _stores(folder / str(partition)):
        if store.is_dir() and any(file.name.split(".")[0] in wanted for file in store.iterdir()):
            return _Store(store, folder.name, partition, ids, noted)
    return _Store(folder / str(partition), folder.name, partition, ids, noted)


def _are_tables_summed(root: Place) -> bool:
    """Did Hadoop write a checksum beside each table? It does so only on a local disk."""
    return not isinstance(root, RemotePath) and any(root.glob("state/**/SSTs/.*.crc"))


def _walk(root: Place, store: _Store, version: int, *, summed: bool) -> Iterator[Part]:
    """From the newest version down to the first one with a snapshot; version 0 is empty."""
    for number in range(version, 0, -1):
        begins = True
        for stem in _stems(store, number):
            begins &= yield from _version(root, store, stem, summed=summed)
        if begins:
            return


def _stems(store: _Store, number: int) -> list[str]:
    """The names of a version's files, without suffix. If nothing retained says which attempt counts, all that exist."""
    if store.ids is None:
        counted = owned(file.name for file in store.folder.glob(f"{number}_*-*.*"))
        return [(counted.get("snapshot") or counted.get("delta") or str(number)).split(".")[0]]
    if number in store.ids:
        return [f"{number}_{store.ids[number]}"]
    there = {file.name.split(".")[0] for file in store.folder.glob(f"{number}_*")}
    return sorted(there) or [f"{number}_unknown"]


def _version(root: Place, store: _Store, stem: str, *, summed: bool) -> Generator[Part, None, bool]:
    """The files of one version; returns True if it has a snapshot that loading can start from."""
    snapshot = next((stem + end for end in SNAPSHOTS if (store.folder / (stem + end)).is_file()), None)
    change = next((stem + end for end in CHANGES if (store.folder / (stem + end)).is_file()), None)
    if snapshot:
        file = _file(root, store, snapshot)
        if change and way(store.folder / change, root) in store.noted.files:  # by a Spark that writes no checksums
            file = replace(file, side=None, spark_side=False)
        # Spark uploads a snapshot in the background, and its checksum in another thread: a job killed in between leaves
        # a snapshot without one. The change files are then still there, and just as good.
        unsummed = file.side is not None and change is not None and not (root / file.side).is_file()
        yield replace(file, side=None, spark_side=False) if unsummed else file
        yield from _tables(root, store, snapshot, summed=summed)
        if not unsummed:
            return True
    yield _file(root, store, change or stem + CHANGES[store.ids is None])
    return False


def _tables(root: Place, store: _Store, snapshot: str, *, summed: bool) -> Iterator[Part]:
    if snapshot.endswith(".zip"):
        for name, size in (tables_of(store.folder / snapshot) or {}).items():
            table = store.folder / name
            sum_file = table.with_name(f".{table.name}.crc")
            side = way(sum_file, root) if summed or sum_file.is_file() else None
            yield replace(store.part(way(table, root)), size=size, side=side)


def _file(root: Place, store: _Store, name: str) -> Part:
    """With format 2 Spark writes a checksum beside it, or (4.0) the ledger has it; Hadoop does for plain Spark."""
    path = way(store.folder / name, root)
    if store.ids is not None:
        decided = int(name.partition("_")[0]) - 1 in store.noted.epochs
        if path in store.noted.files or not (decided or (root / f"{path}.crc").is_file()):
            return store.part(path)
        return replace(store.part(path), side=f"{path}.crc", spark_side=True)
    hadoop = store.folder / f".{name}.crc"
    side = way(hadoop, root) if hadoop.is_file() else None
    return replace(store.part(path), side=side)


def _schemas(root: Place, operator: Place, epoch: int) -> Iterator[Part]:
    """The schemas of the state: one per operator, and in its first partition one per store."""
    found = [operator / "_metadata" / "metadata"]
    if (operator / "_stateSchema").is_dir() or (operator / "_metadata" / "v2").is_dir():
        # transformWithState: a new file whenever the variables change, named by the epoch from which it applies.
        found = [file for folder in ("_metadata/v2", "_stateSchema") for file in _files(operator / folder)]
        found = [file for file in found if int(file.name.split("_")[0]) <= epoch]
        found += [*_named_schemas(operator)] or [operator / "_metadata" / "v2" / "0"]
    else:
        found += [store / "_metadata" / "schema" for store in _stores(operator / "0")]
    for file in dict.fromkeys(found):
        hadoop = file.with_name(f".{file.name}.crc")
        side = way(hadoop, root) if hadoop.is_file() else None
        yield Part(way(file, root), "schema", side=side, operator=operator.name)


def _named_schemas(operator: Place) -> Iterator[Place]:
    """Schema files that an operator's metadata names; the paths in it may be from before the checkpoint was moved."""
    for file in _files(operator / "_metadata" / "v2"):
        for name in schema_paths(file):
            store, base = name.split("/")[-2:]
            yield operator / "_stateSchema" / store / base


def schema_paths(file: Place) -> list[str]:
    """The schema files that an operator's metadata of version 2 names: full paths, as Spark wrote them."""
    try:
        _, _, text = file.read_text().partition("\n")
        stores = json.loads(text)["stateStoreInfo"]
        return [path for store in stores for path in store.get("stateSchemaFilePaths", ())]
    except BAD_JSON:
        return []


def _files(folder: Place) -> list[Place]:
    """Complete files below a folder; names of side files and unfinished writes begin with a dot."""
    found: Iterator[Place] = folder.rglob("[0-9]*")
    return sorted((file for file in found if file.is_file()), key=str)


def _stores(partition: Place) -> list[Place]:
    if not partition.is_dir():
        return [partition]
    named = [folder for folder in partition.iterdir() if folder.is_dir() and folder.name not in NOT_STORES]
    return sorted(named, key=str) or [partition]


def _numbered(folder: Place) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []


# The checksums of a file, in one pass: ours (SHA-256), Spark's (CRC32C) and Hadoop's (CRC32 of every 512 bytes).
#
# Never holds a whole file: state may be gigabytes.

CHUNK = 1 << 20
HADOOP_MAGIC = b"crc\0"
HADOOP_EVERY = 512
"""Hadoop's default for `file.bytes-per-checksum`; the side file has the actual value."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of reading a file once."""

    size: int
    sha256: str
    crc32c: int | None = None
    hadoop: bytes | None = None


def measure(
    path: Place, *, crc32c: bool = False, hadoop_every: int | None = None, to: BinaryIO | None = None
) -> Measured:
    """Read a file once; with `to`, copy it in the same pass."""
    size, sha, crc, pieces = 0, hashlib.sha256(), 0, bytearray()
    # Only whole pieces, because a piece split between two chunks would have to be carried over.
    chunk_size = CHUNK if not hadoop_every else max(1, CHUNK // hadoop_every) * hadoop_every
    with path.open("rb") as file:
        while chunk := file.read(chunk_size):
            size += len(chunk)
            sha.update(chunk)
            if crc32c:
                crc = crc32c_of(chunk, crc)
            if hadoop_every:
                for start in range(0, len(chunk), hadoop_every):
                    pieces += zlib.crc32(chunk[start : start + hadoop_every]).to_bytes(4, "big")
            if to is not None:
                _write(to, chunk)
    return Measured(size, sha.hexdigest(), crc if crc32c else None, bytes(pieces) if hadoop_every else None)


class NotWritten(Exception):
    """The copy failed, not the file that was read."""


def _write(to: BinaryIO, chunk: bytes) -> None:
    try:
        to.write(chunk)
    except OSError as error:
        raise NotWritten(error.strerror) from error


POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""

FOLD = (4323, 5259, 5685)
"""x^4323 + x^5259 + x^5685 = 1 modulo the reversed polynomial, so a bit can be moved to these three places after it.
Squared, this holds for twice the distances as well."""


def crc32c_of(data: bytes, before: int = 0) -> int:
    """CRC32C, continuing from `before`.

    Python has none, and with a table a gigabyte takes a minute. Here the data is one large number whose lowest bit
    comes first: its front is folded onto what follows, thousands of bits per shift, until little is left.
    """
    little = 2 * FOLD[-1]
    number = int.from_bytes(data, "little")
    bits = 8 * len(data)
    if bits <= little:
        return _by_table(data, before)
    number ^= before ^ 0xFFFFFFFF
    times = 1
    while 2 * times * FOLD[-1] <= bits:
        times *= 2
    while times:
        near, middle, far = (times * distance for distance in FOLD)
        while bits >= near + far:
            front = number & ((1 << near) - 1)
            number >>= near
            number ^= front ^ (front << (middle - near)) ^ (front << (far - near))
            bits -= near
        times //= 2
    # The register was already combined with the first bits, so here it starts at zero.
    whole, rest = divmod(bits, 8)
    register = 0
    for _ in range(rest):
        bit = (register ^ number) & 1
        register = (register >> 1) ^ (POLYNOMIAL if bit else 0)
        number >>= 1
    return _by_table(number.to_bytes(whole, "little"), register ^ 0xFFFFFFFF)


def _by_table(data: bytes, before: int) -> int:
    register = before ^ 0xFFFFFFFF
    for byte in data:
        register = (register >> 8) ^ _TABLE[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]


# Temporary files that writers of Spark's log and state left when they died. Never touches a file with a final name.
#
# An object store has none: there a file appears only when it is complete.

TEMPORARY = re.compile(r"\..+\.[0-9a-f-]{32,36}(\.TID\d+)?\.tmp(\.crc)?")
"""`.7.<uuid>.tmp`, `.8.delta.<uuid>.TID12.tmp`, and Hadoop's checksum beside it, `..7.<uuid>.tmp.crc`."""

FOLDERS = ("offsets", "commits", "sources", "state")
MOST = 20_000
"""The most deleted at one start; the rest follows at the next one."""


def sweep(root: str | Place) -> int:
    """Delete what dead writers left long ago; by age, because a live one may be about to rename its own."""
    found = _temporary_files(place(root))
    removed = 0
    old = _now(found) - STALE_S
    for path in filter(_is_temporary, found):
        if removed >= MOST:
            return removed
        try:
            if path.stat().st_mtime < old:
                path.unlink()
                removed += 1
        except OSError:  # its writer is alive after all and was faster, or it is another user's: it does no harm
            continue
    return removed


def count(root: str | Place) -> int:
    """How many there are, whatever their age."""
    return sum(map(_is_temporary, _temporary_files(place(root))))


def _temporary_files(root: Place) -> list[Place]:
    """Candidates in the folders that may have any. On HDFS, from one listing, all files: their times tell the time."""
    if not isinstance(root, RemotePath):
        walks = (walk for folder in FOLDERS for walk in os.walk(root / folder))
        return [Path(where) / name for where, _, names in walks for name in names if TEMPORARY.fullmatch(name)]
    if scheme_of(root.url) == "s3a":
        return []
    there = root.seen()
    return [file for folder in FOLDERS for file in (there / folder).rglob("*")]


def _now(found: list[Place]) -> float:
    """For remote files, the newest one tells the time there: their clock is not ours."""
    if not any(isinstance(file, RemotePath) for file in found):
        return time.time()
    return max(file.stat().st_mtime for file in found)


def _is_temporary(path: Place) -> bool:
    return TEMPORARY.fullmatch(path.name) is not None
