"""Your own sinks: a system that can hold a transaction open, or any function.

    TwoPhaseCommit   the base class for a transactional system (like Flink's TwoPhaseCommitSinkFunction)
    WriteAheadLog    rows are staged first and sent after the decision, so nothing undecided is ever sent

Calls your system only from the driver, and never commits a transaction before the epoch that it belongs to is decided.
Never claims more than it can know: a call that failed may have sent its rows, so they are sent again.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from fencepost.contract import (
    Asked,
    Capabilities,
    Epoch,
    EpochContext,
    EpochFailed,
    Examined,
    Handle,
    Holding,
    Outcome,
    OutputMode,
    Rehearsal,
    Rows,
    Session,
    Sink,
    Unit,
    WriterNumber,
    place_of,
    together,
    unheard,
)
from fencepost.errors import BadConfig, FencepostError, Retryable

__all__ = ["TwoPhaseCommit", "WriteAheadLog"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Body = Mapping[str, Any]
"""What another process needs to end a transaction: JSON with `id`, and without rows or secrets."""


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

    Note: `commit` may be called again after a crash. It must not fail if the transaction is already committed: ask your
    system, and return if it is.
    """

    name: str
    perishable: bool = True
    """Can your system drop a prepared transaction by itself, for example after a timeout?"""
    keep_rows: bool = True
    """Keep the rows staged until they are committed, so that a lost transaction can be rewritten."""

    @abstractmethod
    def begin(self, unit: Unit) -> T:
        """Open a transaction, named by `unit.id`."""

    @abstractmethod
    def write(self, transaction: T, batch: pa.RecordBatch) -> None:
        """Write rows into it; they must not be visible yet."""

    @abstractmethod
    def pre_commit(self, transaction: T) -> Body:
        """Make it durable; return what another process needs to end it, including `id`, the unit's id."""

    @abstractmethod
    def commit(self, body: Body) -> Outcome | None:
        """Commit it: return None or DONE if it is committed (now or before), GONE only if it is proven to be lost.

        If it raises, the outcome is in doubt, and it is called again.
        """

    @abstractmethod
    def abort(self, body: Body) -> None:
        """Abort it, or return if it is already aborted. Called only for a transaction that no decision names."""

    @abstractmethod
    def identity(self) -> str:
        """An id that is stored in the target, and is different if the target is replaced by an empty one."""

    def can_commit(self, body: Body) -> bool:
        """Vote: is it still open? Raise if you cannot tell."""
        return True

    def discard(self, transaction: T) -> None:
        """Writing failed: release the open transaction. It has no body yet, and will be aborted as an orphan."""

    def recover_orphans(self, before: int) -> Iterable[Body]:
        """Bodies of open transactions left by writers older than `before`. Newer ones are filtered out for you."""
        return ()

    def is_committed(self, body: Body) -> bool | None:
        """Does your system say it is committed? None if it can no longer tell.

        `fencepost verify` asks this for every decided transaction, perhaps while the job runs. It must change nothing.
        """
        return None

    @property
    def capabilities(self) -> Capabilities:
        """A transaction that has ended stays ended."""
        return Capabilities(shape="transaction", repeatable=True, perishable=self.perishable, keeps_rows=self.keep_rows)

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        return TwoPhaseCommitSession(self, job)


class TwoPhaseCommitSession(Session):
    """The driver's side of a user-defined sink."""

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
        """Ask whether each is still open."""
        try:
            return tuple(handle.id for handle in handles if not self._sink.can_commit(handle.body))
        except FencepostError:
            raise
        except Exception as error:
            raise self._failed(epoch, "can_commit()", error) from error

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Commit each; if one raises, its outcome is in doubt."""
        return {handle.id: self._commit(handle) for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Pre-commit and commit, without a decision in between."""
        handle = self.pre_commit(epoch, rows)
        if handle is not None and self._commit(handle) is not Outcome.DONE:
            raise self._failed(epoch, "commit()", None)

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """What the system lists, limited to this lineage and older writers; only in recovery, as it may be slow."""
        if at_leisure:
            return ()
        with self._explained("recover_orphans()"):
            bodies = list(self._sink.recover_orphans(before))
        older = [body for body in bodies if self.owner.epoch_of_older(str(body["id"]), before) is not None]
        return tuple(Handle(str(body["id"]), self._sink.name, 0, body=body) for body in older)

    def abort(self, handle: Handle) -> None:
        """Abort one orphan."""
        with self._explained("abort()"):
            self._sink.abort(handle.body)

    def examine(self, asked: Asked) -> Examined:
        """Ask whether each is committed."""
        words = {True: Holding.HELD, False: Holding.MISSING, None: Holding.UNKNOWN}
        try:
            holdings = {
                epoch: together(words[self._sink.is_committed(handle.body)] for handle in handles)
                for epoch, handles in asked.epochs.items()
            }
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not an answer
            return unheard(asked, f"is_committed() failed: {place_of(error)}")
        said = {Holding.MISSING: "is_committed() says no", Holding.UNKNOWN: "is_committed() says neither yes nor no"}
        reasons = {epoch: said[holding] for epoch, holding in holdings.items() if holding in said}
        return Examined(holdings=holdings, reasons=reasons)

    @contextmanager
    def _explained(self, step: str) -> Iterator[None]:
        """Turn what the user's code raises outside an epoch into our error: nothing has been written yet."""
        try:
            yield
        except FencepostError:
            raise
        except Exception as error:
            raise Retryable(
                "target_silent",
                f"The sink's {step} failed: {place_of(error)}.",
                next="Check that the target works, then start the job again.",
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
                raise ValueError("pre_commit() must return a body whose id is unit.id, or recovery cannot identify it")
        except Exception as error:
            if transaction is not None:
                self._discard(transaction)
            if isinstance(error, FencepostError):
                raise
            raise self._failed(Epoch(unit.epoch), "pre-committing", error) from error
        return body

    def _discard(self, transaction: Any) -> None:
        with suppress(Exception):  # the first error matters more, and the orphan is swept later
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
        # Only None and an Outcome have a meaning here.
        log.warning("sink %s: commit() returned a %s, not an Outcome", self._sink.name, type(answer).__name__)
        return Outcome.IN_DOUBT

    def _failed(self, epoch: Epoch, step: str, error: Exception | None) -> FencepostError:
        return EpochFailed(
            "target_silent",
            f"The sink's {step} failed{f' ({type(error).__name__})' if error else ''}.",
            next="Check that the target works; the epoch reruns.",
        ).at(job=self._job, epoch=epoch, sink=self._sink.name)


Send = Callable[[EpochContext, Iterable[pa.RecordBatch]], object]


@dataclass(frozen=True)
class WriteAheadLog(Sink):
    """Hand the rows of every decided epoch to `send(context, batches)`.

        def send(context, batches):
            for batch in batches:
                requests.post(URL, json=batch.to_pylist(), timeout=10).raise_for_status()

        job.write(words, fp.WriteAheadLog(send, name="words-api"))

    At least once: if `send` raises, or the driver dies in it, the same rows are sent again. With `idempotent=True` you
    declare that a second call with the same rows changes nothing (it upserts by key, or stores the context), and the
    job counts as effectively exactly once.

    Note: do not swallow errors in `send`. If it returns, the rows count as sent; if it raises, they are sent again.
    """

    send: Send
    _: KW_ONLY
    name: str
    idempotent: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work, in the user's own line of code."""
        if not self.name or not callable(self.send):
            raise BadConfig(
                "bad_sink",
                "WriteAheadLog needs a function send(context, batches) and a name.",
                next='Write WriteAheadLog(send, name="…").',
            )

    @property
    def capabilities(self) -> Capabilities:
        """A function's calls are never atomic; they are repeatable only if the user says so."""
        return Capabilities(
            shape="apply",
            repeatable=self.idempotent,
            atomic=False,
            modes=frozenset({"append", "update"} if self.idempotent else {"append"}),
            replaces=self.idempotent,
            remedy="" if self.idempotent else "Make send() safe to repeat, and declare idempotent=True.",
        )

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        return WriteAheadLogSession(self, job)


class WriteAheadLogSession(Session):
    """The driver's side of a function."""

    def __init__(self, sink: WriteAheadLog, job: str) -> None:
        self._sink = sink
        self._job = job

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """A function has nowhere to store an identity, so its name has to do."""
        if mode not in self._sink.capabilities.modes:
            raise BadConfig(
                "mode_needs_key",
                "In output mode update a row replaces an earlier one, but this WriteAheadLog does not declare that "
                "its send() can do so.",
                next="Declare idempotent=True if send() upserts by key, or use output mode append.",
            ).at(job=self._job, sink=self._sink.name)
        return f"function:{self._sink.name}"

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The preflight calls nothing, so it serves as its own rehearsal."""
        return Rehearsal(self.preflight(schema, mode))

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are already staged; give them a handle."""
        count = rows.count
        if not count:
            return None
        return Handle(id=self.owner.handle_id(epoch), sink=self._sink.name, rows=count, kept=rows.kept)

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Staged rows can always be sent, if this process can read them: whatever a commit will need, try it here."""
        for handle in handles:
            for _ in self.owner.staging.rows(handle.kept, self._sink.name).batches():
                pass
        return ()

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Send; after an error it is in doubt whether the rows arrived."""
        return {handle.id: self._send(epoch, self.owner.staging.rows_again(handle)) for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send immediately."""
        if rows.count and self._send(epoch, rows) is not Outcome.DONE:
            raise EpochFailed(
                "target_silent",
                "The sink's send() failed; the log says how.",
                next="Check that the target of send() works, then start the job again.",
                safe="The epoch's rows may or may not have been sent.",
            ).at(job=self._job, epoch=epoch, sink=self._sink.name)

    def _send(self, epoch: Epoch, rows: Rows) -> Outcome:
        context = EpochContext(job=self._job, sink=self._sink.name, generation=self.owner.generation, epoch=epoch)
        try:
            self._sink.send(context, rows.batches())
        except Exception as error:  # noqa: BLE001 - in doubt is the only honest answer to any of them
            log.warning("sink %s: send() failed in epoch %d: %s", self._sink.name, epoch, place_of(error))
            return Outcome.IN_DOUBT
        return Outcome.DONE
