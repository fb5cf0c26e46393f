"""The rows of an epoch, staged as Arrow files: written once, read by every sink, read again after a crash.

    fencepost/<lineage>/staged/<writer>/<epoch>-<random>.arrow

Never keyed by partition: on replay the number of partitions may differ.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fencepost import volatile
from fencepost.errors import OperatorNeeded
from fencepost.ledger.local import make_folder, sync_folder
from fencepost.ledger.places import Place, RemotePath, remote_for, store_at
from fencepost.protocol.records import Epoch, Handle, Kept, WriterNumber, digest

TAG = "__fencepost_sink"
"""First column of a job with several branches: which of the struct columns behind it holds the row."""


LIST = ".list"
MANY = 50
"""Staged files that a decision names one by one; more than that go by a list of them."""


class Rows(Protocol):
    """One sink's rows of one epoch."""

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""

    @property
    def count(self) -> int:
        """How many."""

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The staged files that hold them; empty if the files do not outlive the epoch."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows in staged files; those of one branch if the files hold several."""

    staging: Staging
    kept: tuple[Kept, ...]
    sink: str

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""
        first = next(self.staging.each(self.kept))
        with pa.memory_map(self.staging.here(first)) as file, pa.ipc.open_stream(file) as reader:
            return branch_schema(reader.schema, self.sink)

    @property
    def count(self) -> int:
        """How many; for several branches this reads the files, but only their first column."""
        found = 0
        for kept in self.staging.each(self.kept):
            with pa.memory_map(self.staging.here(kept)) as file, pa.ipc.open_stream(file) as reader:
                found += sum(branch_count(batch, self.sink) for batch in reader)
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""
        for kept in self.staging.each(self.kept):
            with pa.memory_map(self.staging.here(kept)) as file, pa.ipc.open_stream(file) as reader:
                for batch in reader:
                    mine = branch(batch, self.sink)
                    if mine.num_rows:
                        yield mine


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder of staged rows of one lineage.

    Where it is on another machine, a file is copied here when it is first read, and goes with the epoch's own.
    """

    root: Place

    def folder(self, writer: WriterNumber) -> Place:
        """Where one writer stages."""
        return self.root / str(writer)

    @property
    def copies(self) -> Path:
        """Where copies of remote files are; the folder ends with the process."""
        return Path(volatile.folder(digest(str(self.root).encode())[:16], on_disk=True))

    def here(self, kept: Kept) -> str:
        """The path of a staged file on this machine."""
        if isinstance(self.root, Path):
            return str(self.root / kept.file)
        copy = self.copies / kept.file
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            half = copy.with_suffix(f".{uuid.uuid4().hex}.half")
            remote_for(self.root.url).fetch(f"{self.root}/{kept.file}", half)
            half.rename(copy)
        return str(copy)

    def stage(self, writer: WriterNumber, epoch: Epoch, table: pa.Table, *, durable: bool) -> tuple[Kept, ...]:
        """Write an epoch's rows from the driver (where the engine did not already do it)."""
        if not table.num_rows:
            return ()
        name = f"{epoch}-{uuid.uuid4().hex}.arrow"
        folder = (self.root if isinstance(self.root, Path) else self.copies) / str(writer)
        make_folder(folder)
        path = folder / name
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table, max_chunksize=10_000)
        if isinstance(self.root, RemotePath):
            remote_for(self.root.url).send(path, f"{self.root}/{writer}/{name}")
        elif durable:
            sync_file(path)
            sync_folder(folder)
        return (Kept(f"{writer}/{name}", table.num_rows, digest(path.read_bytes())),)

    def gathered(self, writer: WriterNumber, epoch: Epoch, kept: tuple[Kept, ...]) -> tuple[Kept, ...]:
        """Many files under one name, that of a list: a decision has to stay small, whatever the number of tasks."""
        if len(kept) <= MANY:
            return kept
        data = json.dumps([[file.file, file.rows, file.sum] for file in kept], separators=(",", ":")).encode()
        name = f"{writer}/{epoch}-{uuid.uuid4().hex}{LIST}"
        store_at(self.root).replace(name, data)
        return (Kept(name, sum(file.rows for file in kept), digest(data)),)

    def each(self, kept: tuple[Kept, ...]) -> Iterator[Kept]:
        """The files themselves, also those of a list."""
        for one in kept:
            if one.file.endswith(LIST):
                yield from (Kept(*file) for file in json.loads(Path(self.here(one)).read_bytes()))
            else:
                yield one

    def rows(self, kept: tuple[Kept, ...], sink: str) -> Rows:
        """The rows of one sink in files that this process or the engine just wrote."""
        return StagedRows(self, kept, sink)

    def rows_again(self, handle: Handle) -> Rows:
        """The kept rows of a handle after a crash, checked against the sums in the ledger."""
        for kept in self._lists_first(handle.kept):
            if not self._is_whole(kept):
                raise OperatorNeeded(
                    "staged_rows_damaged",
                    f"The staged file {kept.file} of a decided epoch is missing or changed.",
                    next="Restore the file from a copy of the checkpoint, then start the job again.",
                ).at(sink=handle.sink)
        return StagedRows(self, handle.kept, handle.sink)

    def _lists_first(self, kept: tuple[Kept, ...]) -> Iterator[Kept]:
        """Each list before what it names: a list that is damaged names nothing."""
        for one in kept:
            yield one
            if one.file.endswith(LIST):
                yield from self.each((one,))

    def _is_whole(self, kept: Kept) -> bool:
        try:
            return digest(Path(self.here(kept)).read_bytes()) == kept.sum
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
        """The same, of what remote files were copied here."""
        if isinstance(self.root, RemotePath):
            Staging(self.copies).sweep(writer, through)

    def sweep_older(self, writer: WriterNumber) -> None:
        """Delete what older writers staged: nothing of it is named by an open decision any more."""
        if isinstance(self.root, RemotePath):
            Staging(self.copies).sweep_older(writer)
        store = store_at(self.root)
        for name in store.list(""):
            if name.isdigit() and int(name) < writer:
                # An old driver may wake and stage another file just now; the next recovery takes that one.
                store.delete(name)


def branch(batch: pa.RecordBatch, sink: str) -> pa.RecordBatch:
    """The rows of one sink in a batch that may hold several branches."""
    if batch.schema.names[:1] != [TAG]:
        return batch
    index = batch.schema.get_field_index(sink)
    mine = batch.filter(pc.equal(batch.column(0), pa.scalar(index, pa.int32())))
    return pa.RecordBatch.from_arrays(mine.column(index).flatten(), schema=branch_schema(batch.schema, sink))


def branch_count(batch: pa.RecordBatch, sink: str) -> int:
    """How many rows of a batch are one sink's, without making them."""
    if batch.schema.names[:1] != [TAG]:
        return int(batch.num_rows)
    index = batch.schema.get_field_index(sink)
    return int(pc.sum(pc.equal(batch.column(0), pa.scalar(index, pa.int32()))).as_py() or 0)


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
