"""The rows of an epoch, staged as Arrow files: written once, read by every sink, and read again after a crash.

    fencepost/<lineage>/staged/<writer>/<epoch>-<random>.arrow

Never keyed by partition: a rerun may have a different number of partitions. Never holds more than one batch of a file,
and never maps one into memory: recovery must finish an epoch of any size with the memory in which it was decided.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.errors import OperatorNeeded
from fencepost.protocol.format import StoredFormat, digest
from fencepost.protocol.records import Epoch, Handle, Kept, WriterNumber
from fencepost.store.local import make_folder, sync_folder
from fencepost.store.path import Place, RemotePath, store_at

TAG = "__fencepost_sink"
"""The first column if a job has several branches: says which of the struct columns after it holds the row."""


LIST = ".list"
STAGED_LIST = StoredFormat("A list of staged rows", 1)
MANY = 50
"""The most staged files that a decision names one by one; if there are more, it names a file that lists them."""

BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20
"""The most that a sink is handed at once. A single row may be larger."""


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """`<epoch>-<random>.list`: the files of an epoch that has too many of them to be named in its decision."""

    files: list[Any]
    """Each as a handle has it: file, rows, sum."""


class Rows(Protocol):
    """One sink's rows of one epoch."""

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""

    @property
    def count(self) -> int:
        """How many rows there are."""

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The staged files that hold them; empty if the files do not outlive the epoch."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows in staged files; only those of one branch if the files hold several."""

    staging: Staging
    kept: tuple[Kept, ...]
    sink: str

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""
        return branch_schema(self._stored_schema, self.sink)

    @property
    def _stored_schema(self) -> pa.Schema:
        return self.staging.schema(self.kept)

    @property
    def count(self) -> int:
        """How many rows there are; with several branches this reads the files, once for all of them."""
        if not self.kept or (schema := self._stored_schema).names[:1] != [TAG]:
            return sum(kept.rows for kept in self.kept)
        index = schema.get_field_index(self.sink)
        return sum(_counts(self.staging.here(one), one.sum)[index] for one in self.staging.each(self.kept))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call; a batch is at most `BATCH_ROWS` and `BATCH_BYTES`, or one row."""
        for batch in self.staging.batches(self.kept):
            yield from slices(branch(batch, self.sink))


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder of staged rows of one lineage.

    If it is remote, a file is copied to this machine when it is first read, and deleted with the epoch's other files.
    """

    root: Place

    def folder(self, writer: WriterNumber) -> Place:
        """Where one writer stages its rows."""
        return self.root / str(writer)

    @property
    def copies(self) -> Path:
        """Where copies of remote files are; the folder is deleted when the process ends."""
        return Path(process_folder(digest(str(self.root).encode())[:16], on_disk=True))

    def here(self, kept: Kept) -> str:
        """The path of a staged file on this machine."""
        if isinstance(self.root, Path):
            return str(self.root / kept.file)
        copy = self.copies / kept.file
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            half = copy.with_suffix(f".{uuid.uuid4().hex}.half")
            (self.root / kept.file).fetch(half)
            half.rename(copy)
        return str(copy)

    def stage(self, writer: WriterNumber, epoch: Epoch, table: pa.Table, *, durable: bool) -> tuple[Kept, ...]:
        """Write an epoch's rows from the driver (where the engine did not already do it)."""
        if not table.num_rows:
            return ()
        return (self.stage_batches(writer, epoch, table.schema, table.to_batches(), durable=durable),)

    def stage_batches(
        self, writer: WriterNumber, epoch: Epoch, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, durable: bool
    ) -> Kept:
        """The same, with one batch in memory at a time."""
        name = f"{epoch}-{uuid.uuid4().hex}.arrow"
        folder = (self.root if isinstance(self.root, Path) else self.copies) / str(writer)
        make_folder(folder)
        path = folder / name
        rows = 0
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as out:
            for batch in batches:
                rows += batch.num_rows
                for piece in slices(batch):
                    out.write_batch(piece)
        if isinstance(self.root, RemotePath):
            (self.root / f"{writer}/{name}").send(path)
        elif durable:
            sync_file(path)
            sync_folder(folder)
        return Kept(f"{writer}/{name}", rows, sum_of(path))

    def gathered(self, writer: WriterNumber, epoch: Epoch, kept: tuple[Kept, ...]) -> tuple[Kept, ...]:
        """Replace many files by one that lists them: a decision has to stay small, however many tasks there are."""
        if len(kept) <= MANY:
            return kept
        data = STAGED_LIST.encode(StagedFiles(list(kept)))
        name = f"{writer}/{epoch}-{uuid.uuid4().hex}{LIST}"
        store_at(self.root).replace(name, data)
        return (Kept(name, sum(file.rows for file in kept), digest(data)),)

    def each(self, kept: tuple[Kept, ...]) -> Iterator[Kept]:
        """The files themselves, including those in a list."""
        for one in kept:
            if one.file.endswith(LIST):
                listed = STAGED_LIST.decode(StagedFiles, Path(self.here(one)).read_bytes())
                yield from (Kept(**file) for file in listed.files)
            else:
                yield one

    def schema(self, kept: tuple[Kept, ...]) -> pa.Schema:
        """As the files have it, with all branches."""
        first = next(self.each(kept))
        return _schema(self.here(first), first.sum)

    def batches(self, kept: tuple[Kept, ...]) -> Iterator[pa.RecordBatch]:
        """The same, batch by batch, each in memory of its own, which is free again once nobody holds the batch."""
        for one in self.each(kept):
            with pa.OSFile(self.here(one)) as file, pa.ipc.open_stream(file) as reader:
                yield from reader

    def rows(self, kept: tuple[Kept, ...], sink: str) -> Rows:
        """The rows of one sink in files that this process or the engine just wrote."""
        return StagedRows(self, kept, sink)

    def rows_again(self, handle: Handle) -> Rows:
        """The kept rows of a handle after a crash, checked against the checksums in the ledger."""
        for kept in self._lists_first(handle.kept):
            if not self._is_whole(kept):
                raise OperatorNeeded(
                    "staged_rows_damaged",
                    f"Staged file {kept.file} of a decided epoch is missing or changed.",
                    next="Restore the file from a backup of the checkpoint, then start the job again.",
                ).at(sink=handle.sink)
        return StagedRows(self, handle.kept, handle.sink)

    def _lists_first(self, kept: tuple[Kept, ...]) -> Iterator[Kept]:
        """Each list before the files in it, because a damaged list must not be read."""
        for one in kept:
            yield one
            if one.file.endswith(LIST):
                yield from self.each((one,))

    def _is_whole(self, kept: Kept) -> bool:
        try:
            return sum_of(Path(self.here(kept))) == kept.sum
        except FileNotFoundError:
            return False

    def sweep(self, writer: WriterNumber, through: Epoch) -> None:
        """Delete this writer's files of epochs up to `through`."""
        self.sweep_copies(writer, through)
        store = store_at(self.root)
        for name in store.list(str(writer)):
            epoch, _, _ = name.partition("-")
            if epoch.isdigit() and int(epoch) <= through:
                store.unlink(f"{writer}/{name}")

    def sweep_copies(self, writer: WriterNumber, through: Epoch) -> None:
        """The same for local copies of remote files."""
        if isinstance(self.root, RemotePath):
            Staging(self.copies).sweep(writer, through)

    def sweep_older(self, writer: WriterNumber) -> None:
        """Delete what older writers staged: no open decision names any of it any more."""
        if isinstance(self.root, RemotePath):
            Staging(self.copies).sweep_older(writer)
        store = store_at(self.root)
        for name in store.list(""):
            if name.isdigit() and int(name) < writer:
                # An old driver may wake up and stage another file right now; the next recovery deletes that one.
                store.delete(name)


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in pieces of at most `BATCH_ROWS` and `BATCH_BYTES`, or of one row. Copies nothing."""
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield from _halves(batch.slice(start, BATCH_ROWS))


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halved until small enough, not divided evenly: one row may be larger than all others together."""
    if batch.num_rows <= 1 or batch.nbytes <= BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _halves(batch.slice(0, half))
    yield from _halves(batch.slice(half))


def sum_of(path: Path) -> str:
    """The SHA-256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def branch(batch: pa.RecordBatch, sink: str) -> pa.RecordBatch:
    """The rows of one sink in a batch that may hold several branches."""
    if batch.schema.names[:1] != [TAG]:
        return batch
    index = batch.schema.get_field_index(sink)
    mine = batch.column(index).filter(pc.equal(batch.column(0), pa.scalar(index, pa.int32())))  # its column only
    return pa.RecordBatch.from_arrays(mine.flatten(), schema=branch_schema(batch.schema, sink))


@lru_cache(maxsize=64)
def _schema(path: str, checksum: str) -> pa.Schema:
    """The columns of a staged file: every sink asks, more than once."""
    with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reader:
        return reader.schema


@lru_cache(maxsize=4096)
def _counts(path: str, checksum: str) -> Counter[int]:
    """How many rows of a staged file belong to each branch: every sink asks, more than once."""
    found: Counter[int] = Counter()
    tags = pa.ipc.IpcReadOptions(included_fields=[0])
    with pa.OSFile(path) as file, pa.ipc.open_stream(file, options=tags) as reader:
        for batch in reader:
            for pair in pc.value_counts(batch.column(0)).to_pylist():
                found[pair["values"]] += pair["counts"]
    return found


def branch_schema(schema: pa.Schema, sink: str) -> pa.Schema:
    """The columns of one sink in a schema that may hold several branches."""
    if schema.names[:1] != [TAG]:
        return schema
    return pa.schema(list(schema.field(sink).type))


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Folders that end with the process that made them: checkpoints in memory, and copies of remote files.
#
#     /dev/shm/fencepost-<user>/<random>/<job>       without /dev/shm, in the folder for temporary files
#     /dev/shm/fencepost-<user>/<random>.lock        held by the process, so that others can see that it is alive
#
# Deliberately never outlives the process: a checkpoint that should has a path.

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own in it, not a file that others can guess

_lock = threading.Lock()
_mine: dict[tuple[int, bool], tuple[Path, IO[bytes]]] = {}
"""By process (a fork has its own folder) and by `on_disk`: the folder, and its open lock file."""


def process_folder(name: str, *, on_disk: bool = False) -> str:
    """The folder with this name in this process; the same at every call."""
    key = os.getpid(), on_disk
    with _lock:
        if key not in _mine:
            place = _place(on_disk=on_disk)
            _sweep_dead(place)
            _mine[key] = _make(place)
            atexit.register(remove_process_folders)
        return str(_mine[key][0] / quote(name, safe=""))


def remove_process_folders() -> None:
    """Delete this process's folders."""
    for on_disk in (False, True):
        if (mine := _mine.pop((os.getpid(), on_disk), None)) is not None:
            _delete(*mine)


def _sweep_dead(place: Path) -> None:
    """Delete the folders of processes that died without deleting them."""
    for lost in place.glob("*[!k]"):  # a JVM that outlived its Python process may write after the lock is gone
        if not lost.with_suffix(".lock").exists():
            shutil.rmtree(lost, ignore_errors=True)
    for lock in place.glob("*.lock"):
        try:
            file = open(lock, "rb")  # noqa: SIM115 - closing releases the lock
        except FileNotFoundError:
            continue
        if _alone(file, lock):
            _delete(lock.with_suffix(""), file)
        else:
            file.close()


def _place(*, on_disk: bool) -> Path:
    shared = os.access(SHARED_MEMORY, os.W_OK) and not on_disk
    root = SHARED_MEMORY if shared else Path(tempfile.gettempdir())
    place = root / f"fencepost-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():  # another user took the name: use one that nobody can predict
        return Path(tempfile.mkdtemp(prefix="fencepost-", dir=root))
    return place


def _make(place: Path) -> tuple[Path, IO[bytes]]:
    while True:
        made = place / uuid.uuid4().hex
        file = open(made.with_suffix(".lock"), "xb")  # noqa: SIM115 - held as long as the process lives
        if _alone(file, made.with_suffix(".lock")):
            made.mkdir()
            return made, file
        file.close()  # another process's sweep came in between


def _alone(file: IO[bytes], path: Path) -> bool:
    """Do we hold the lock now, and is it still the file of that name? The kernel releases a dead process's locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _delete(made: Path, file: IO[bytes]) -> None:
    shutil.rmtree(made, ignore_errors=True)
    made.with_suffix(".lock").unlink(missing_ok=True)
    file.close()
