"""A driver without Spark, for tests of sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.rows import Rows, Staging
from fencepost.sinks.contract import OutputMode, Owner, Session, Sink
from fencepost.sinks.holding import Asked, Examined

LINEAGE = "aaaaaaaa-0000-4000-8000-000000000001"
ANOTHER = "bbbbbbbb-0000-4000-8000-000000000002"


class Driver:
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
        """Preflight and take over; the target's identity."""
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
        assert handle is not None, "rows were there, and pre_commit gave no handle"
        return handle

    def vote(self, epoch: int, handle: Handle) -> tuple[str, ...]:
        """The sink's vote on one handle."""
        return self.session.verify(Epoch(epoch), (handle,))

    def commit(self, epoch: int, handle: Handle) -> Outcome:
        """What the sink says about one handle."""
        return self.session.commit(Epoch(epoch), (handle,))[handle.id]

    def look(self, handles: Mapping[int, Handle]) -> Examined:
        """What the target says of these epochs to somebody who only looks, as `fencepost verify` does."""
        session = self.sink.session(self.owner.job)
        asked = Asked(
            lineage=self.owner.lineage,
            generation=self.owner.generation,
            ancestors=self.owner.ancestors,
            epochs={Epoch(epoch): (handle,) for epoch, handle in handles.items()},
            last=self.owner.writer,
        )
        try:
            return session.examine(asked)
        finally:
            session.close()

    def run(self, epoch: int, table: pa.Table) -> Handle:
        """A whole epoch without a failure."""
        handle = self.pre_commit(epoch, table)
        assert self.vote(epoch, handle) == (), "the vote failed without a reason"
        assert self.commit(epoch, handle) is Outcome.DONE, "the commit was not done without a reason"
        return handle


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """A table as sorted tuples, to compare with what a reader sees."""
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
