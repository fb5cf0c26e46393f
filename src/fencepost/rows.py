"""The rows of an epoch, staged as Arrow files: written once, read by every sink, read again after a crash.

    fencepost/<lineage>/staged/<writer>/<epoch>-<random>.arrow

Never keyed by partition: on replay the number of partitions may differ.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.errors import OperatorNeeded
from fencepost.ledger.local import make_folder, sync_folder
from fencepost.protocol.records import Epoch, Handle, Kept, WriterNumber, digest

TAG = "__fencepost_sink"
"""First column of a job with several branches: which of the struct columns behind it holds the row."""


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

    folder: Path
    kept: tuple[Kept, ...]
    sink: str

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""
        with pa.memory_map(str(self.folder / self.kept[0].file)) as file, pa.ipc.open_stream(file) as reader:
            return branch_schema(reader.schema, self.sink)

    @property
    def count(self) -> int:
        """How many; for several branches this reads the files, but only their first column."""
        found = 0
        for kept in self.kept:
            with pa.memory_map(str(self.folder / kept.file)) as file, pa.ipc.open_stream(file) as reader:
                found += sum(branch_count(batch, self.sink) for batch in reader)
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""
        for kept in self.kept:
            with pa.memory_map(str(self.folder / kept.file)) as file, pa.ipc.open_stream(file) as reader:
                for batch in reader:
                    mine = branch(batch, self.sink)
                    if mine.num_rows:
                        yield mine


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder of staged rows of one lineage."""

    root: Path

    def folder(self, writer: WriterNumber) -> Path:
        """Where one writer stages."""
        return self.root / str(writer)

    def stage(self, writer: WriterNumber, epoch: Epoch, table: pa.Table, *, durable: bool) -> tuple[Kept, ...]:
        """Write an epoch's rows from the driver (where the engine did not already do it)."""
        if not table.num_rows:
            return ()
        folder = self.folder(writer)
        make_folder(folder)
        name = f"{epoch}-{uuid.uuid4().hex}.arrow"
        path = folder / name
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table, max_chunksize=10_000)
        if durable:
            sync_file(path)
            sync_folder(folder)
        return (Kept(f"{writer}/{name}", table.num_rows, digest(path.read_bytes())),)

    def rows(self, kept: tuple[Kept, ...], sink: str) -> Rows:
        """The rows of one sink in files that this process or the engine just wrote."""
        return StagedRows(self.root, kept, sink)

    def rows_again(self, handle: Handle) -> Rows:
        """The kept rows of a handle after a crash, checked against the sums in the ledger."""
        for kept in handle.kept:
            path = self.root / kept.file
            if not path.is_file() or digest(path.read_bytes()) != kept.sum:
                raise OperatorNeeded(
                    "staged_rows_damaged",
                    f"The staged file {kept.file} of a decided epoch is missing or changed.",
                    next="Restore the file from a copy of the checkpoint, then start the job again.",
                ).at(sink=handle.sink)
        return StagedRows(self.root, handle.kept, handle.sink)

    def sweep(self, writer: WriterNumber, through: Epoch) -> None:
        """Delete this writer's files of epochs up to `through`."""
        folder = self.folder(writer)
        for name in os.listdir(folder) if folder.is_dir() else ():
            epoch, _, _ = name.partition("-")
            if epoch.isdigit() and int(epoch) <= through:
                (folder / name).unlink(missing_ok=True)

    def sweep_older(self, writer: WriterNumber) -> None:
        """Delete what older writers staged: nothing of it is named by an open decision any more."""
        for folder in self.root.iterdir() if self.root.is_dir() else ():
            if folder.name.isdigit() and int(folder.name) < writer:
                # An old driver may wake and stage another file just now; the next recovery takes that one.
                shutil.rmtree(folder, ignore_errors=True)


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
