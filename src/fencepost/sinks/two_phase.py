"""The class to derive from for a transactional system of your own (Flink's TwoPhaseCommitSinkFunction).

Never calls your system from anywhere but the driver, and never ends a transaction in the same breath as it opens one.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from fencepost.errors import EpochFailed, FencepostError, Retryable
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.rows import Rows
from fencepost.sinks.contract import Capabilities, OutputMode, Session, Sink, place_of
from fencepost.sinks.holding import Asked, Examined, Holding, together, unheard

__all__ = ["TwoPhaseCommit", "Unit"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Body = Mapping[str, Any]
"""What another process needs to end a transaction: JSON, no row, no secret, and `id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One transaction to be opened."""

    id: str
    """Used by no other attempt; name the transaction by it, in your system."""
    job: str
    sink: str
    lineage: str
    generation: int
    epoch: int
    writer: int


class TwoPhaseCommit(Sink, Generic[T]):
    """A sink in a system that can hold a transaction open for another process to end.

        class Warehouse(fp.TwoPhaseCommit[Load]):
            name = "warehouse"

            def begin(self, unit):            return client.open_load(label=unit.id)
            def write(self, load, batch):     load.put(batch)
            def pre_commit(self, load):       load.prepare(); return {"id": load.label}
            def commit(self, body):           client.finish(body["id"])
            def abort(self, body):            client.cancel(body["id"])
            def identity(self):               return client.cluster_id()

    The mistake people make: a `commit` that fails when the transaction was committed before. It is called again after
    every crash; ask your system, and return when it is there.
    """

    name: str
    perishable: bool = True
    """May your system lose a prepared transaction by itself, for example after a timeout?"""
    keep_rows: bool = True
    """Keep the rows staged until they are committed, so that a lost transaction is written again."""

    @abstractmethod
    def begin(self, unit: Unit) -> T:
        """Open a transaction, named by `unit.id`."""

    @abstractmethod
    def write(self, transaction: T, batch: pa.RecordBatch) -> None:
        """Write rows into it; nobody may see them."""

    @abstractmethod
    def pre_commit(self, transaction: T) -> Body:
        """Make it durable; return what another process needs to end it, with `id` = the unit's id."""

    @abstractmethod
    def commit(self, body: Body) -> Outcome | None:
        """End it: return (or DONE) if it is committed now or was before, GONE only if it is proven to be lost.

        Anything raised means in doubt: it is called again.
        """

    @abstractmethod
    def abort(self, body: Body) -> None:
        """Undo it; undone already is fine. Only ever called for a transaction that no decision names."""

    @abstractmethod
    def identity(self) -> str:
        """An id that lives in the target and changes when it is replaced by an empty one."""

    def can_commit(self, body: Body) -> bool:
        """Vote: is it still open? Raise if you cannot tell."""
        return True

    def discard(self, transaction: T) -> None:
        """Writing failed: let go of an open transaction. It has no body yet, and will be aborted as an orphan."""

    def recover_orphans(self, before: int) -> Iterable[Body]:
        """Bodies of transactions that are open, left by writers older than `before`. Newer ones are filtered out."""
        return ()

    def is_committed(self, body: Body) -> bool | None:
        """Is it committed, by your system's own word? None: it cannot tell any more.

        Asked by `fencepost verify`, of every decided transaction, while the job may be running. It must change nothing.
        """
        return None

    @property
    def capabilities(self) -> Capabilities:
        """A transaction that is ended once is ended for ever."""
        return Capabilities(shape="transaction", repeatable=True, perishable=self.perishable, keeps_rows=self.keep_rows)

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        return TwoPhaseCommitSession(self, job)


class TwoPhaseCommitSession(Session):
    """The driver's side of a user's own system."""

    def __init__(self, sink: TwoPhaseCommit[Any], job: str) -> None:
        self._sink = sink
        self._job = job

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Ask for the identity."""
        with self._explained("identity()"):
            return self._sink.identity()

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """Open, write, prepare."""
        count = rows.count
        if not count:
            return None
        unit = Unit(
            id=self.owner.handle_id(epoch),
            job=self._job,
            sink=self._sink.name,
            lineage=self.owner.lineage,
            generation=self.owner.generation,
            epoch=epoch,
            writer=self.owner.writer,
        )
        body = self._prepare(unit, rows)
        kept = rows.kept if self._sink.keep_rows else ()
        return Handle(id=unit.id, sink=self._sink.name, rows=count, kept=kept, body=body)

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Ask for each whether it is still open."""
        try:
            return tuple(handle.id for handle in handles if not self._sink.can_commit(handle.body))
        except FencepostError:
            raise
        except Exception as error:
            raise self._failed(epoch, "can_commit()", error) from error

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """End each; whatever is raised leaves it open what happened."""
        return {handle.id: self._commit(handle) for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """The same, without a decision in between."""
        handle = self.pre_commit(epoch, rows)
        if handle is not None and self._commit(handle) is not Outcome.DONE:
            raise self._failed(epoch, "commit()", None)

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """What the system lists, of this lineage and of older writers only; in recovery only, for it may be dear."""
        if at_leisure:
            return ()
        with self._explained("recover_orphans()"):
            bodies = list(self._sink.recover_orphans(before))
        older = [body for body in bodies if self.owner.epoch_of_older(str(body["id"]), before) is not None]
        return tuple(Handle(str(body["id"]), self._sink.name, 0, body=body) for body in older)

    def abort(self, handle: Handle) -> None:
        """Undo one orphan."""
        with self._explained("abort()"):
            self._sink.abort(handle.body)

    def examine(self, asked: Asked) -> Examined:
        """Ask for each whether it is committed."""
        words = {True: Holding.HELD, False: Holding.MISSING, None: Holding.UNKNOWN}
        try:
            holdings = {
                epoch: together(words[self._sink.is_committed(handle.body)] for handle in handles)
                for epoch, handles in asked.epochs.items()
            }
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
            return unheard(asked, f"is_committed() failed: {place_of(error)}")
        said = {Holding.MISSING: "is_committed() says no", Holding.UNKNOWN: "is_committed() says neither yes nor no"}
        reasons = {epoch: said[holding] for epoch, holding in holdings.items() if holding in said}
        return Examined(holdings=holdings, reasons=reasons)

    @contextmanager
    def _explained(self, step: str) -> Iterator[None]:
        """What the user's code raises outside an epoch, in our words: at a start nothing has been written yet."""
        try:
            yield
        except FencepostError:
            raise
        except Exception as error:
            raise Retryable(
                "target_silent",
                f"The sink's {step} failed: {place_of(error)}.",
                next="See that the target works, then start the job again.",
                safe="Safe: nothing was written; what is decided will be finished.",
            ).at(job=self._job, sink=self._sink.name) from error

    def _prepare(self, unit: Unit, rows: Rows) -> Body:
        transaction = None
        try:
            transaction = self._sink.begin(unit)
            for batch in rows.batches():
                self._sink.write(transaction, batch)
            body: Body = json.loads(json.dumps(dict(self._sink.pre_commit(transaction))))
            if body.get("id") != unit.id:
                raise ValueError("pre_commit() must return a body with id = unit.id, or recovery cannot tell it apart")
        except Exception as error:
            if transaction is not None:
                self._discard(transaction)
            if isinstance(error, FencepostError):
                raise
            raise self._failed(Epoch(unit.epoch), "pre-committing", error) from error
        return body

    def _discard(self, transaction: Any) -> None:
        with suppress(Exception):  # the first error counts, and the orphan is swept
            self._sink.discard(transaction)

    def _commit(self, handle: Handle) -> Outcome:
        try:
            answer = self._sink.commit(handle.body)
        except FencepostError:
            raise
        except Exception as error:  # noqa: BLE001 - in doubt is the only honest answer to any of them
            log.warning("sink %s: commit() failed: %s", self._sink.name, place_of(error))
            return Outcome.IN_DOUBT
        if answer is None or isinstance(answer, Outcome):
            return answer or Outcome.DONE
        # Only None and an Outcome say something; what another answer means, nobody can know.
        log.warning("sink %s: commit() returned a %s", self._sink.name, type(answer).__name__)
        return Outcome.IN_DOUBT

    def _failed(self, epoch: Epoch, step: str, error: Exception | None) -> FencepostError:
        return EpochFailed(
            "target_silent",
            f"The sink's {step} failed{f' ({type(error).__name__})' if error else ''}.",
            next="See that the target works; the epoch runs again.",
        ).at(job=self._job, epoch=epoch, sink=self._sink.name)
