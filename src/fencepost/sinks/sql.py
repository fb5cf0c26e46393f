"""What apply sinks on SQL databases have in common: one transaction that holds the rows and the epoch row.

    vote      BEGIN · read the epoch row · apply the rows · set the epoch row · stay open
    commit    COMMIT                                                        this process voted
              BEGIN · read the epoch row · there? done : apply · COMMIT     a crash lies between

The epoch row is the target's own memory of what it holds. Never answers from anything else: not from a variable, not
from an error code of COMMIT.
"""

from __future__ import annotations

import logging
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from fencepost import faults
from fencepost.errors import EpochFailed, FencepostError, OperatorNeeded, Retryable
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle
from fencepost.rows import Rows
from fencepost.sinks.contract import Owner
from fencepost.sinks.database import Conflict, Database, RowsRefused, Silent, Voting
from fencepost.sinks.marks import MarkedSession, ids_of

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a vote is cast that the target ends for the sake of another transaction."""

Call = TypeVar("Call", bound=Callable[..., Any])


def alone(call: Call) -> Call:
    """One session at a time: a second start in this process shares the connection, and may come at any moment."""

    @wraps(call)
    def locked(self: SqlSession, *args: Any, **named: Any) -> Any:
        with self.database.lock:
            return call(self, *args, **named)

    return cast("Call", locked)


class SqlSession(MarkedSession):
    """An apply sink with an epoch row. A product's session adds `preflight` and `apply`."""

    def __init__(self, job: str, sink: str, database: Database) -> None:
        super().__init__(job, sink)
        self.database = database

    @property
    def how_to_mark(self) -> tuple[str, str]:
        """Statements for a person to run."""
        job, sink, lineage = map(self.database.literal, (self.job, self.sink, self.owner.lineage))
        epochs, columns = self.database.epochs, "job, sink, lineage, generation, epoch, handle, writer"
        remove = f"DELETE FROM {epochs} WHERE job = {job} AND sink = {sink};"
        values = f"{job}, {sink}, {lineage}, {self.owner.generation}, {{epoch}}, 'by hand', 0"
        return remove, f"{remove} INSERT INTO {epochs} ({columns}) VALUES ({values});"

    target = "The target"
    """At the beginning of a sentence."""
    guards_plain_writes = False
    """Rows replace others: under at_least_once an epoch that is sent again must not overwrite a newer one."""

    @abstractmethod
    def apply(self, rows: Rows) -> None:
        """Write the rows inside the open transaction, in their order."""

    def before_rows(self) -> None:
        """Once, before an epoch's rows are written, inside the open transaction."""

    def apply_unit(self, handle: Handle, rows: Rows) -> None:
        """Write what a handle stands for, inside the open transaction; `rows` are those that were kept for it."""
        if handle.rows:
            self.apply(rows)

    def after_commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        """The epoch is in: clear away what was staged in the target. Must not raise."""

    @alone
    def open(self, owner: Owner) -> None:
        """Let go of what an older writer in this process holds; refuse a target of another lineage."""
        super().open(owner)
        found = None
        try:
            self._look()
            if self.database.voting is None:  # else a newer writer in this process has its vote in there
                self.database.take_over(owner)
            found = self.database.mark(self.job, self.sink)
        except (Silent, RowsRefused) as error:
            raise Retryable(
                "target_silent",
                f"The target does not answer: {error}.",
                next="See that the target works and who holds its lock, then start the job again.",
                safe="Safe: nothing was written.",
            ).at(job=self.job, sink=self.sink) from None
        finally:
            self._let_go()
        self.check_at_start(found)

    @alone
    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are staged already; name them."""
        # An earlier attempt of this epoch may have voted and failed elsewhere: its rows must not ride along.
        self._let_go()
        count = rows.count
        if not count and not self.empties:
            return None
        kept = rows.kept if count else ()
        assert bool(kept) == bool(count), "an apply sink declares keeps_rows"
        return Handle(id=self.owner.handle_id(epoch), sink=self.sink, rows=count, kept=kept)

    @alone
    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote by doing the work: whatever the target will not take, it refuses here, before the decision."""
        for attempt in range(ATTEMPTS):
            try:
                self._vote(epoch, handles)
            except Conflict as error:
                is_first = self.database.voting is None or not self.database.voting.handles
                self.rollback()
                if is_first and attempt < ATTEMPTS - 1:  # else another sink's vote went with it
                    time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 - spreads retries
                    continue
                raise self._not_written(epoch, error) from None
            except Silent as error:
                self.rollback()
                raise self._not_written(epoch, error) from None
            except RowsRefused as error:
                self.rollback()
                raise self.rows_refused(epoch, error) from None
            except BaseException:
                self.rollback()
                raise
            break
        return ()

    def _vote(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        self._join(epoch)
        self.check_before_vote(self.database.mark(self.job, self.sink), epoch)
        self.before_rows()
        for handle in handles:
            self.apply_unit(handle, self.owner.staging.rows(handle.kept, self.sink))
        faults.reach("vote.during")
        self._set_mark(epoch, handles)
        self.database.check_all()
        assert self.database.voting is not None
        self.database.voting.handles[self.sink] = ids_of(handles)

    @alone
    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """COMMIT what the vote left open; after a crash ask the epoch row, and apply again what is not there."""
        try:
            if self._voted(epoch, handles):
                self._end()
            else:
                self._finish(epoch, handles)
            self.note_done(epoch)
            self.after_commit(epoch, handles)
            outcome = Outcome.DONE
        except Silent as error:
            # Also an error of COMMIT itself: only a new connection can tell whether it happened.
            log.warning("sink %s: commit of epoch %d is in doubt: %s", self.sink, epoch, error)
            self._drop()
            outcome = Outcome.IN_DOUBT
        return {handle.id: outcome for handle in handles}

    @alone
    def write(self, epoch: Epoch, rows: Rows) -> None:
        """All rows in one transaction. Sent again, they are there twice; or, with a key, as they were.

        Rows with a key take the mark along, so that an older epoch cannot set them back.
        """
        try:
            self._begin(patient=True)
            if self.guards_plain_writes and self.is_next(self.database.mark(self.job, self.sink), epoch):
                self._set_mark(epoch, ())
            self.before_rows()
            self.apply(rows)
            self._end()
        except RowsRefused as error:
            raise self.rows_refused(epoch, error) from None
        except Silent as error:
            self._drop()
            raise self._not_written(epoch, error, safe="The epoch's rows may or may not be in the target.") from None
        finally:
            self._let_go()

    @alone
    def close(self) -> None:
        """Let go of the connection, once nobody else in this job uses it."""
        self.database.leave(self)

    @alone
    def rollback(self, *, undecided: bool = True) -> None:
        """Undo the vote."""
        self._let_go()

    def _join(self, epoch: Epoch) -> None:
        """Be in the vote's transaction: a new one, or that of another sink of this job in the same database.

        Two sinks of a job may lie in one database that has a single write lock. With a transaction each, the second
        vote would wait for the first one's end for ever.
        """
        voting = self.database.voting
        if voting is None or not self._is_mine(voting, epoch) or self.sink in voting.handles:
            self._begin(patient=True)
            self.database.voting = Voting(self.owner.lineage, self.owner.writer, epoch)

    def _voted(self, epoch: Epoch, handles: tuple[Handle, ...]) -> bool:
        voting = self.database.voting
        return voting is not None and self._is_mine(voting, epoch) and voting.handles.get(self.sink) == ids_of(handles)

    def _is_mine(self, voting: Voting, epoch: Epoch) -> bool:
        return (voting.lineage, voting.writer, voting.epoch) == (self.owner.lineage, self.owner.writer, epoch)

    def _finish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        self._begin(patient=False)
        try:
            if self.is_there(self.database.mark(self.job, self.sink), epoch, handles):
                return
            self.before_rows()
            for handle in handles:
                self.apply_unit(handle, self.owner.staging.rows_again(handle))
            self._set_mark(epoch, handles)
            self.database.check_all()
            self._end()
        except RowsRefused as error:
            raise OperatorNeeded(
                "apply_refused",
                f"{self.target} refuses rows of a decided epoch: {error}. It was changed since the vote, or lost data.",
                next="Mend it so that it takes the rows again (nothing that was kept of them is deleted before), then "
                "start the job.",
            ).at(job=self.job, epoch=epoch, sink=self.sink) from None
        finally:
            self._let_go()

    def _set_mark(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        self.database.set_mark(self.job, self.sink, self.mark_of(epoch, handles))

    def _end(self) -> None:
        self.database.end()
        self.database.voting = None

    def _look(self) -> None:
        self._let_go()
        if self.database.voting is None:
            self.database.look()

    def _begin(self, *, patient: bool) -> None:
        self._let_go()
        if self.database.voting is not None:
            raise Silent("a newer start of the job in this process holds the transaction")
        self.database.begin(patient=patient)

    def _let_go(self) -> None:
        """Undo what is open, unless a newer writer, or one of another checkpoint, opened it in this process."""
        voting, owner = self.database.voting, self._owner
        mine = voting is None or owner is None or (voting.lineage == owner.lineage and voting.writer <= owner.writer)
        if mine:
            self.database.voting = None
            self.database.undo()

    def _drop(self) -> None:
        self._let_go()
        if self.database.voting is None:
            self.database.drop()

    def rows_refused(self, epoch: Epoch, error: RowsRefused) -> FencepostError:
        """The vote's no."""
        return EpochFailed(
            "rows_refused",
            f"{self.target} refused rows: {error}.",
            next="Mend the table or the rows; the epoch runs again from the same positions.",
        ).at(job=self.job, epoch=epoch, sink=self.sink)

    def _not_written(self, epoch: Epoch, error: Silent, safe: str | None = None) -> EpochFailed:
        failed = EpochFailed(
            "target_silent",
            f"{self.target} did not take the rows: {error}.",
            next="See that the target works and who holds its lock; the epoch runs again.",
            safe=safe,
        )
        failed.at(job=self.job, epoch=epoch, sink=self.sink)
        return failed
