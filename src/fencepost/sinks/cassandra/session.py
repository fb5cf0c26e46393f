"""The driver's side of one table.

    pre-commit   the rows are staged: name them, and the time they will be written with
    vote         could every row be written? nothing is sent
    commit       there already (the mark)? done : write every row with the handle's time, then move the mark on

A row written again with the same time is the same row; with an older time it is no row at all. So whoever finishes an
epoch, however often and however late, leaves the same table. Never writes a row with a time of the moment.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from cassandra.query import BoundStatement

from fencepost import faults
from fencepost.errors import EpochFailed, FencepostError, OperatorNeeded, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle
from fencepost.rows import Rows
from fencepost.sinks.cassandra import cql
from fencepost.sinks.cassandra.columns import Column, Unfit, key_of, values
from fencepost.sinks.cassandra.connection import PROTOCOL, Connection
from fencepost.sinks.cassandra.sink import Cassandra
from fencepost.sinks.cassandra.target import MOST_BYTES, Target
from fencepost.sinks.contract import OutputMode, Owner
from fencepost.sinks.database import RowsRefused, Silent
from fencepost.sinks.holding import Asked, Examined, unheard
from fencepost.sinks.marks import Mark, MarkedSession, examined, ids_of
from fencepost.sinks.rehearsal import Rehearsal

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 1000
BYTES_AT_ONCE = 8 * 2**20
LONGEST_KEY = 65_535
"""Bytes, a limit of Cassandra."""
OVERHEAD = 512
"""Bytes of a write beside its values: names, lengths, the statement's id; 16 a column are added."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A mark, and the newest time that rows were written with."""

    mark: Mark | None = None
    time: int | None = None


class CassandraSession(MarkedSession):
    """Writes one row at a time, many in flight."""

    def __init__(self, sink: Cassandra, job: str) -> None:
        super().__init__(job, sink.name)
        self._settings = sink
        self._connection = Connection(sink)
        self._target = Target(sink, self._connection, self._refused)
        self._ours = cql.OurTables(sink.keyspace)
        self._columns: list[Column] = []
        self._most_bytes = MOST_BYTES
        self._last_time = 0
        self._behind = 0
        """Microseconds by which our clock is behind the cluster's."""
        self._voted: tuple[Epoch, str, Stamped] | None = None
        """The mark that the vote saw, so that the commit need not ask again before it writes."""

    @property
    def how_to_mark(self) -> tuple[str, str]:
        """Statements for a person to run."""
        lineage, generation = (self._owner.lineage, self._owner.generation) if self._owner else ("", 0)
        return (
            self._ours.remove_by_hand(self.job, self.sink),
            self._ours.add_by_hand(self.job, self.sink, lineage, generation, self._clock()),
        )

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the cluster and the table, make what is missing, return the identity that stands in the keyspace."""
        with self._usable():
            identity, columns, self._most_bytes = self._target.look(schema, is_new=lambda: self._found().mark is None)
        self._columns = [column for column in columns if column.name in schema.names]
        return identity

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The same, where nothing is to be made; else only what is missing is said."""
        with self._usable():
            missing = self._target.missing()
        return Rehearsal("", missing) if missing else Rehearsal(self.preflight(schema, mode))

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except RowsRefused as error:
            self._connection.drop()
            raise self._refused(
                "target_unusable",
                f"The cluster cannot be used: {error}.",
                "See that the user exists and may SELECT and MODIFY in this keyspace.",
            ) from None
        except Silent as error:
            self._connection.drop()
            raise self._unanswered(error) from None

    def open(self, owner: Owner) -> None:
        """Refuse a target of another lineage, or one that was set back; learn the time that ours must be behind."""
        super().open(owner)
        try:
            found = self._found()
            theirs = int(self._connection.rows(cql.NOW)[0].ms) * 1000
        except (Silent, RowsRefused) as error:
            self._connection.drop()
            raise self._unanswered(error) from None
        self._behind = max(0, theirs - time.time_ns() // 1000)
        self.check_at_start(found.mark)

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are staged already; name them, and the time that every writer of them will use."""
        self._voted = None
        count = rows.count
        if not count:
            return None
        assert rows.kept, "an apply sink declares keeps_rows"
        body = {"time": self._next_time()}
        return Handle(id=self.owner.handle_id(epoch), sink=self.sink, rows=count, kept=rows.kept, body=body)

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote by doing all of the work but the sending: there is no transaction that could be left open."""
        try:
            self._voted = None
            found = self._found()
            self.check_before_vote(found.mark, epoch)
            self._check_unchanged()
            for handle in handles:
                for _ in self._bound(self.owner.staging.rows(handle.kept, self.sink), handle.body["time"]):
                    pass
            faults.reach("cassandra.voting")
        except RowsRefused as error:
            raise self._rows_refused(epoch, error) from None
        except Silent as error:
            self._connection.drop()
            raise self._not_written(epoch, error) from None
        self._voted = epoch, ids_of(handles), found
        return ()

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Write what is not there yet, then move the mark on; a silence leaves it open, and it is done again."""
        try:
            voted, self._voted = self._voted, None
            found = voted[2] if voted is not None and voted[:2] == (epoch, ids_of(handles)) else self._found()
            if not self.is_there(found.mark, epoch, handles):
                for handle in handles:
                    self._apply(self.owner.staging.rows_again(handle), handle.body["time"])
                newest = max(handle.body["time"] for handle in handles)
                self._move(found, Stamped(self.mark_of(epoch, handles), newest), epoch, handles)
            self.note_done(epoch)
            outcome = Outcome.DONE
        except Silent as error:
            log.warning("sink %s: commit of epoch %d is in doubt: %s", self.sink, epoch, error)
            self._connection.drop()
            outcome = Outcome.IN_DOUBT
        except RowsRefused as error:
            raise OperatorNeeded(
                "apply_refused",
                f"The target refuses rows of a decided epoch: {self._why(error)}. It was changed since the vote, or "
                "lost data.",
                next="Mend the target so that it takes the rows again (they are kept), then start the job.",
            ).at(job=self.job, epoch=epoch, sink=self.sink) from None
        return {handle.id: outcome for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """All rows, with a time that the mark is moved to before: who comes later with an older epoch is stopped."""
        if not rows.count:
            return
        try:
            found = self._found()
            self.is_next(found.mark, epoch)
            at = self._next_time()
            self._move(found, Stamped(self.mark_of(epoch, ()), at), epoch, ())
            self._apply(rows, at)
        except RowsRefused as error:
            raise self._rows_refused(epoch, error, safe="Some of the epoch's rows may be in the target.") from None
        except Silent as error:
            self._connection.drop()
            raise self._not_written(epoch, error, safe="The epoch's rows may or may not be in the target.") from None

    def rollback(self, *, undecided: bool = True) -> None:
        """Nothing is held but what the vote saw."""
        self._voted = None

    def examine(self, asked: Asked) -> Examined:
        """By the mark, read plainly: a serial read would finish what a driver that died left half-way."""
        try:
            seen = self._target.peek(self.job, self.sink)
        except (Silent, RowsRefused) as error:
            self._connection.drop()
            return unheard(asked, f"it does not answer: {error}")
        return examined(seen, asked, self._settings.table)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.drop()

    # --- the mark

    def _found(self) -> Stamped:
        row = self._connection.serially(self._ours.read, (self.job, self.sink))
        if row is None or row.epoch is None:
            return Stamped()
        mark = Mark(row.lineage, row.generation, Epoch(row.epoch), row.handle or "", row.writer or 0)
        self._last_time = max(self._last_time, row.written_at or 0)
        return Stamped(mark, row.written_at)

    def _move(self, found: Stamped, to: Stamped, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        """Compare and set: an older driver that wakes here cannot set the mark back."""
        assert to.mark is not None
        mark = to.mark
        new = (mark.lineage, mark.generation, mark.epoch, mark.handle, mark.writer, to.time, self.job, self.sink)
        if found.mark is None:
            answer = self._connection.serially(self._ours.first, new)
        else:
            old = found.mark
            known = (old.lineage, old.generation, old.epoch, found.time)
            answer = self._connection.serially(self._ours.next, new + known)
        if not answer.applied and not (handles and self.is_there(self._found().mark, epoch, handles)):
            raise Silent("another driver moved the mark at the same time")

    # --- time

    def _clock(self) -> int:
        """Microseconds; the later of our clock and the cluster's."""
        return time.time_ns() // 1000 + self._behind

    def _next_time(self) -> int:
        """Later than everything this job wrote, also if a clock was set back."""
        self._last_time = max(self._clock(), self._last_time + 1)
        return self._last_time

    # --- rows

    def _apply(self, rows: Rows, at: int) -> None:
        self._last_time = max(self._last_time, at)
        some: list[BoundStatement] = []
        size = 0
        for statement, length in self._bound(rows, at):
            if some and (len(some) >= ROWS_AT_ONCE or size + length > BYTES_AT_ONCE):
                self._connection.write(some)
                faults.reach("cassandra.applying")
                some, size = [], 0
            some.append(statement)
            size += length
        self._connection.write(some)

    def _bound(self, rows: Rows, at: int) -> Iterator[tuple[BoundStatement, int]]:
        """The rows as statements, the last one of every key: two with one time, and the larger value would win."""
        last = self._last_of_every_key(rows)
        names = rows.schema.names
        partition, clustering = key_of(self._columns)
        statement = self._statement(names)
        most = self._most_bytes - OVERHEAD - 16 * len(names)
        position = 0
        for batch in rows.batches():
            columns = [self._values(name, column) for name, column in zip(names, batch.columns, strict=True)]
            for row in zip(*columns, strict=True):
                position += 1
                if last is not None and position not in last:
                    continue
                with _quoting_nothing():
                    bound = statement.bind((*row, at))
                raw = dict(zip(names, bound.values, strict=False))
                _check_key([raw[name] for name in partition], [raw[name] for name in clustering])
                size = sum(len(value) for value in raw.values() if value is not None)
                if size > most:
                    raise RowsRefused(f"a row has more than {most} bytes, which is what the cluster takes in one write")
                yield bound, size

    def _last_of_every_key(self, rows: Rows) -> set[int] | None:
        """Positions (from 1) of the rows to write; None for all. By the keys' bytes: Python thinks 0.0 is -0.0."""
        names = rows.schema.names
        statement = self._statement(names)
        kinds = {column.name: column.type for column in statement.column_metadata[: len(names)]}
        partition, clustering = key_of(self._columns)
        last: dict[tuple[bytes | None, ...], int] = {}
        position = 0
        for batch in rows.batches():
            columns = []
            for name in (*partition, *clustering):
                found = self._values(name, batch.column(name))
                with _quoting_nothing():
                    columns.append([None if v is None else kinds[name].to_binary(v, PROTOCOL) for v in found])
            for key in zip(*columns, strict=True):
                position += 1
                last[key] = position
        return None if len(last) == position else set(last.values())

    def _statement(self, names: Sequence[str]) -> Any:
        sink = self._settings
        return self._connection.prepared(cql.insert_into(sink.keyspace, sink.table_name, names), repeatable=True)

    def _values(self, name: str, array: pa.Array) -> list[Any]:
        try:
            return values(array, next(column.type for column in self._columns if column.name == name))
        except Unfit as error:
            raise RowsRefused(f"column {name!r} {error}") from None
        except (pa.ArrowException, ValueError, OverflowError) as error:  # these quote the value
            raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None

    # --- words

    def _check_unchanged(self) -> None:
        now = self._target.columns()
        if not now:
            raise RowsRefused(f"table {self._settings.table} is gone")
        if not all(column in now for column in self._columns):
            raise RowsRefused(f"the columns of table {self._settings.table} are not those of the start any more")

    def _why(self, error: RowsRefused) -> str:
        """Look for a better reason than the server's, whose words may quote a value."""
        try:
            self._check_unchanged()
        except RowsRefused as better:
            return str(better)
        except Silent:
            pass
        return str(error)

    def _refused(self, code: str, what: str, next_: str) -> FencepostError:
        return TargetRefused(code, what, next=next_, safe="Safe: no row was written.").at(job=self.job, sink=self.sink)

    def _unanswered(self, error: Exception) -> FencepostError:
        return Retryable(
            "target_silent",
            f"The target does not answer: {error}.",
            next="See that enough nodes are up and that hosts, port and tls are right, then start the job again.",
            safe="Safe: no row was written.",
        ).at(job=self.job, sink=self.sink)

    def _rows_refused(self, epoch: Epoch, error: RowsRefused, safe: str | None = None) -> FencepostError:
        return EpochFailed(
            "rows_refused",
            f"The target refused rows: {error}.",
            next="Mend the table or the rows; the epoch runs again from the same positions.",
            safe=safe,
        ).at(job=self.job, epoch=epoch, sink=self.sink)

    def _not_written(self, epoch: Epoch, error: Silent, safe: str | None = None) -> FencepostError:
        return EpochFailed(
            "target_silent",
            f"The target did not take the rows: {error}.",
            next="See that enough nodes are up; the epoch runs again.",
            safe=safe,
        ).at(job=self.job, epoch=epoch, sink=self.sink)


@contextmanager
def _quoting_nothing() -> Iterator[None]:
    """The client's errors about a value have the value in them."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise RowsRefused(f"values do not fit their columns ({type(error).__name__})") from None


def _check_key(partition: list[bytes | None], clustering: list[bytes | None]) -> None:
    if None in partition or None in clustering:
        raise RowsRefused("a column of the key is NULL in some rows")
    if len(partition) == 1 and not partition[0]:
        raise RowsRefused("the partition key is empty in some rows")
    whole = sum(len(part or b"") + 3 for part in partition) if len(partition) > 1 else len(partition[0] or b"")
    if whole > LONGEST_KEY or any(len(part or b"") > LONGEST_KEY for part in clustering):
        raise RowsRefused(f"a key has more than {LONGEST_KEY} bytes in some rows")
