"""A driver without Spark, for tests of sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from fencepost.contract import Asked, Examined, Instant, OutputMode, Owner, Session, Sink
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.store.staging import Rows, Staging

LINEAGE = "aaaaaaaa-0000-4000-8000-000000000001"
ANOTHER = "bbbbbbbb-0000-4000-8000-000000000002"


class SinkDriver:
    """One start of a driver, without Spark: a session that is open, and rows staged for it.

    Staged rows of one lineage lie in one folder, as in a checkpoint: a second driver finds those of the first.
    """

    def __init__(
        self,
        sink: Sink,
        folder: Path,
        *,
        writer: int = 1,
        lineage: str = LINEAGE,
        generation: int = 0,
        ancestors: Iterable[str] = (),
        held: Epoch | None = None,
        older: Iterable[int] | None = None,
        job: str = "job",
    ) -> None:
        self.sink = sink
        self.session: Session = sink.session(job)
        self.owner = Owner(
            job=job,
            lineage=lineage,
            generation=generation,
            writer=WriterNumber(writer),
            staging=Staging(folder / "checkpoint" / lineage / "staged"),
            ancestors=frozenset(ancestors),
            held={} if held is None else {sink.name: held},
            older=tuple(map(WriterNumber, range(1, writer) if older is None else older)),
        )

    def start(self, schema: pa.Schema, mode: OutputMode = "append") -> str:
        """Preflight and take over; returns the target's identity."""
        identity = self.session.preflight(schema, mode)
        self.session.open(self.owner)
        return identity

    def rows(self, epoch: int, table: pa.Table) -> Rows:
        """Stage a table as the engine would."""
        staging = self.owner.staging
        kept = staging.stage(self.owner.writer, Epoch(epoch), table, durable=True)
        return staging.rows(kept, self.sink.name)

    def pre_commit(self, epoch: int, table: pa.Table) -> Handle:
        """Stage and pre-commit rows; there must be some."""
        handle = self.session.pre_commit(Epoch(epoch), self.rows(epoch, table))
        assert handle is not None, "there were rows, but pre_commit returned no handle"
        return handle

    def vote(self, epoch: int, handle: Handle) -> tuple[str, ...]:
        """The sink's vote on one handle."""
        return self.session.verify(Epoch(epoch), (handle,))

    def commit(self, epoch: int, handle: Handle) -> Outcome:
        """What the sink says about one handle."""
        return self.session.commit(Epoch(epoch), (handle,))[handle.id]

    def look(self, handles: Mapping[int, Handle]) -> Examined:
        """What the target says about these epochs to a command that only reads, such as `fencepost verify`."""
        session = self.sink.session(self.owner.job)
        try:
            return session.examine(self._asked(handles))
        finally:
            session.close()

    def as_of(self, epoch: int, handles: Mapping[int, Handle]) -> Instant:
        """How a reader sees the target as it was right after an epoch, of those that have these handles."""
        session = self.sink.session(self.owner.job)
        try:
            return session.as_of(self._asked(handles), Epoch(epoch))
        finally:
            session.close()

    def _asked(self, handles: Mapping[int, Handle]) -> Asked:
        return Asked(
            lineage=self.owner.lineage,
            generation=self.owner.generation,
            ancestors=self.owner.ancestors,
            epochs={Epoch(epoch): (handle,) for epoch, handle in handles.items()},
            last=self.owner.writer,
            whole=True,
        )

    def run(self, epoch: int, table: pa.Table) -> Handle:
        """A whole epoch without a failure."""
        handle = self.pre_commit(epoch, table)
        assert self.vote(epoch, handle) == (), "the vote failed for no reason"
        assert self.commit(epoch, handle) is Outcome.DONE, "the commit failed for no reason"
        return handle


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """A table as sorted tuples, to compare with what a reader sees."""
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
