"""The driver's side of one table.

    pre-commit   the rows are staged: name them, and choose the timestamp they will be written with
    vote         could every row be written? nothing is sent
    commit       there already (the mark)? done : write every row with the handle's timestamp, then move the mark

Writing a row again with the same timestamp changes nothing; with an older one it has no effect. So whoever finishes an
epoch, however often and however late, leaves the same table. Never writes a row with the current time.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from itertools import repeat
from typing import Any

import pyarrow as pa
from cassandra.query import BoundStatement

from fencepost import faults
from fencepost.connectors.cassandra.columns import Column, Unfit, key_of, key_values, values
from fencepost.connectors.cassandra.server import (
    MOST_BYTES,
    NOW,
    PROTOCOL,
    Connection,
    OurTables,
    Target,
    delete_from,
    insert_into,
    mark_in,
)
from fencepost.connectors.cassandra.sink import Cassandra
from fencepost.connectors.table.database import Denied, NotAllowed, RowsRefused, Silent
from fencepost.connectors.table.deletion import is_deleted, without
from fencepost.connectors.table.mark import Mark, MarkedSession, examined, ids_of, instant_seen
from fencepost.contract import (
    Asked,
    Examined,
    Instant,
    OutputMode,
    Owner,
    Rehearsal,
    SortedRows,
    Territory,
    names_of,
    unheard,
)
from fencepost.errors import FencepostError, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle
from fencepost.store.staging import Rows

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 1000
BYTES_AT_ONCE = 8 * 2**20
FEW_HOSTS = 3
"""That an error names."""
LONGEST_KEY = 65_535
"""Bytes, a limit of Cassandra."""
OVERHEAD = 512
"""Bytes of a write besides its values: names, lengths, the statement's id; plus 16 per column."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A mark, and the newest timestamp that rows were written with."""

    mark: Mark | None = None
    time: int | None = None


class CassandraSession(MarkedSession):
    """Writes one row at a time, many in flight."""

    def __init__(self, sink: Cassandra, job: str) -> None:
        super().__init__(job, sink.name)
        self._settings = sink
        self._connection = Connection(sink)
        self._target = Target(sink, self._connection, self._refused)
        self._ours = OurTables(sink.keyspace)
        self._territory: Territory | None = None
        self._columns: list[Column] = []
        self._most_bytes = MOST_BYTES
        self._last_time = 0
        self._behind = 0
        """How far our clock is behind the cluster's, in microseconds."""
        self._voted: tuple[Epoch, str, Stamped] | None = None
        """The mark that the vote saw, so that the commit need not read it again before it writes."""

    @property
    def how_to_mark(self) -> tuple[str, str]:
        """Statements for people to run."""
        lineage, generation = (self._owner.lineage, self._owner.generation) if self._owner else ("", 0)
        return (
            self._ours.remove_by_hand(self.job, self.sink),
            self._ours.add_by_hand(self.job, self.sink, lineage, generation, self._clock()),
        )

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the cluster and the table, create what is missing, return the identity stored in the keyspace."""
        deletes = self._settings.deletes
        schema = without(schema, deletes)
        with self._usable():
            identity, columns, self._most_bytes = self._target.look(schema, is_new=lambda: self._found().mark is None)
        if deletes in {column.name for column in columns}:
            raise self._refused(
                "schema_does_not_fit",
                f"Table {self._settings.table} has a column {deletes!r}, the one that deletes= names, which is not "
                "written.",
                "Give the DataFrame's column another name, or drop the table's.",
            )
        self._columns = [column for column in columns if column.name in schema.names]
        key = frozenset(column.name for column in self._columns if column.is_key)
        place = repr((identity.partition(":")[0], self._settings.table_name))
        # A deleted row takes all its columns with it, whoever wrote them.
        self._territory = Territory(place, "key" if deletes is None else "all", key, frozenset(schema.names) - key)
        return identity

    def territory(self) -> Territory | None:
        """The table, and the columns that are not its key."""
        return self._territory

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The same if everything exists; otherwise only report what is missing."""
        with self._usable():
            missing = self._target.missing()
        return Rehearsal("", missing) if missing else Rehearsal(self.preflight(schema, mode))

    @contextmanager
    def _usable(self, final: tuple[type[Exception], ...] = (Denied, RowsRefused)) -> Iterator[None]:
        try:
            yield
        except final as error:
            self._connection.drop()
            raise self._unusable(error) from None
        except (Silent, RowsRefused) as error:
            self._connection.drop()
            raise self.target_silent(error, "Safe: no row was written.") from None

    def open(self, owner: Owner) -> None:
        """Check the mark, and learn the cluster's clock, which our timestamps must not be behind."""
        super().open(owner)
        with self._usable(final=(Denied, NotAllowed)):
            found = self._found()
            asked = time.time_ns() // 1000  # not when the answer is here: by then their clock is later, too
            theirs = (int(self._connection.rows(NOW)[0].ms) + 1) * 1000  # they cut off what is less than one
        self._behind = max(0, theirs - asked)
        self.check_at_start(found.mark)

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are already staged; name them, and the timestamp that everybody who writes them will use."""
        self._voted = None
        count = rows.count
        if not count:
            return None
        assert rows.kept, "an apply sink declares keeps_rows"
        order = names_of(self._settings.order_by)
        deletes = self._settings.deletes
        body = {
            "written_at_us": self._next_time(),
            **({"order_by": list(order)} if order else {}),
            **({"deletes": deletes} if deletes else {}),
        }
        return Handle(id=self.owner.handle_id(epoch), sink=self.sink, rows=count, kept=rows.kept, body=body)

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote by doing all the work except sending: there is no transaction that could stay open."""
        try:
            self._voted = None
            found = self._found()
            self.check_before_vote(found.mark, epoch)
            self._check_unchanged()
            for handle in handles:
                rows = SortedRows.of(self.owner.staging.rows(handle.kept, self.sink), handle.body.get("order_by", ()))
                for _ in self._bound(rows, handle.body["written_at_us"], handle.body.get("deletes")):
                    pass
            faults.reach("cassandra.voting")
        except (Silent, RowsRefused) as error:
            raise self._failed(epoch, error) from None
        self._voted = epoch, ids_of(handles), found
        return ()

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Write what is not there yet, then move the mark; without an answer it is in doubt, and is retried."""
        try:
            voted, self._voted = self._voted, None
            found = voted[2] if voted is not None and voted[:2] == (epoch, ids_of(handles)) else self._found()
            if not self.is_there(found.mark, epoch, handles):
                for handle in handles:
                    rows = SortedRows.of(self.owner.staging.rows_again(handle), handle.body.get("order_by", ()))
                    self._apply(rows, handle.body["written_at_us"], handle.body.get("deletes"))
                newest = max(handle.body["written_at_us"] for handle in handles)
                self._move(found, Stamped(self.mark_of(epoch, handles), newest), epoch, handles)
            self.note_done(epoch)
            outcome = Outcome.DONE
        except Silent as error:
            log.warning("sink %s: commit of epoch %d is in doubt: %s", self.sink, epoch, error)
            self._connection.drop()
            outcome = Outcome.IN_DOUBT
        except RowsRefused as error:
            raise self.apply_refused(epoch, self._why(error)) from None
        return {handle.id: outcome for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Move the mark first, then write all rows: whoever comes later with an older epoch is stopped."""
        if not rows.count:
            return
        try:
            found = self._found()
            self.is_next(found.mark, epoch)
            at = self._next_time()
            self._move(found, Stamped(self.mark_of(epoch, ()), at), epoch, ())
            self._apply(SortedRows.of(rows, names_of(self._settings.order_by)), at, self._settings.deletes)
        except (Silent, RowsRefused) as error:
            raise self._failed(epoch, error, safe="Some or all of the epoch's rows may be in the target.") from None

    def rollback(self, *, undecided: bool = True) -> None:
        """Nothing to undo; only forget what the vote saw."""
        self._voted = None

    def examine(self, asked: Asked) -> Examined:
        """By the mark, with a plain read: a serial one would complete what a dead driver left half done."""
        try:
            seen = self._target.peek(self.job, self.sink)
        except (Denied, NotAllowed) as error:
            self._connection.drop()
            return unheard(asked, f"it cannot be used: {error}")
        except (Silent, RowsRefused) as error:
            self._connection.drop()
            return unheard(asked, str(error))
        except FencepostError as error:  # its mark is of a newer fencepost, or was changed
            return unheard(asked, error.what)
        return examined(seen, asked, self._settings.table)

    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        """By the mark, which moves last: some rows of a later epoch may be there already, if one is decided."""
        try:
            seen = self._target.peek(self.job, self.sink)
        except (Denied, NotAllowed) as error:
            self._connection.drop()
            return Instant.unheard(f"it cannot be used: {error}")
        except (Silent, RowsRefused) as error:
            self._connection.drop()
            return Instant.unheard(f"it does not answer: {error}")
        except FencepostError as error:  # as in `examine`
            return Instant.unheard(error.what)
        found = instant_seen(seen, asked, epoch, self._settings.table)
        later = max(asked.epochs, default=epoch)
        if found.exact and later > epoch:
            why = f"epoch {later} is decided, and some of its rows may be there already"
            return replace(found, text="", exact=False, why=why)
        return found

    def close(self) -> None:
        self._connection.drop()

    # the mark

    def _found(self) -> Stamped:
        row = self._connection.serially(self._ours.read, (self.job, self.sink))
        if row is None or row.epoch is None:
            return Stamped()
        self._last_time = max(self._last_time, row.written_at_us or 0)
        return Stamped(mark_in(row, self.job, self.sink), row.written_at_us)

    def _move(self, found: Stamped, to: Stamped, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        """Compare and set: an older driver that resumes here cannot move the mark back."""
        assert to.mark is not None
        mark = to.mark
        new = (*astuple(mark), to.time, self.job, self.sink)
        if found.mark is None:
            answer = self._connection.serially(self._ours.first, new)
        else:
            old = found.mark
            known = (old.lineage, old.generation, old.epoch, found.time)
            answer = self._connection.serially(self._ours.next, new + known)
        if not answer.applied and not (handles and self.is_there(self._found().mark, epoch, handles)):
            raise Silent("another driver changed the mark at the same time")

    # time

    def _clock(self) -> int:
        """Microseconds; the later of our clock and the cluster's."""
        return time.time_ns() // 1000 + self._behind

    def _next_time(self) -> int:
        """Later than everything this job wrote, even if a clock was set back."""
        self._last_time = max(self._clock(), self._last_time + 1)
        return self._last_time

    # rows

    def _apply(self, rows: Rows, at: int, deletes: str | None = None) -> None:
        self._last_time = max(self._last_time, at)
        some: list[BoundStatement] = []
        size = 0
        for statement, length in self._bound(rows, at, deletes):
            if some and (len(some) >= ROWS_AT_ONCE or size + length > BYTES_AT_ONCE):
                self._connection.write(some)
                faults.reach("cassandra.applying")
                some, size = [], 0
            some.append(statement)
            size += length
        self._connection.write(some)

    def _bound(self, rows: Rows, at: int, deletes: str | None) -> Iterator[tuple[BoundStatement, int]]:
        """The rows as statements, only the last one of each key: with equal timestamps the larger value would win."""
        names = without(rows.schema, deletes).names
        last = self._last_of_every_key(rows, names)
        partition, clustering = key_of(self._columns)
        key = [names.index(name) for name in (*partition, *clustering)]
        statement = self._statement(names)
        removal = None if deletes is None else self._removal((*partition, *clustering))
        most = self._most_bytes - OVERHEAD - 16 * len(names)
        position = 0
        for batch in rows.batches():
            gone = repeat(False) if deletes is None else is_deleted(batch, deletes).to_pylist()
            columns = [self._values(name, batch.column(name)) for name in names]
            for row, is_gone in zip(zip(*columns, strict=True), gone, strict=False):
                position += 1
                if last is not None and position not in last:
                    continue
                with _quoting_nothing():
                    if is_gone:
                        assert removal is not None
                        bound = removal.bind((at, *(row[place] for place in key)))
                        raw = dict(zip((*partition, *clustering), bound.values[1:], strict=True))
                    else:
                        bound = statement.bind((*row, at))
                        raw = dict(zip(names, bound.values, strict=False))
                _check_key([raw[name] for name in partition], [raw[name] for name in clustering])
                size = sum(len(value) for value in raw.values() if value is not None)
                if size > most:
                    raise RowsRefused(
                        f"a row has more than {most} bytes, the most that the cluster accepts in one write"
                    )
                yield bound, size

    def _last_of_every_key(self, rows: Rows, names: Sequence[str]) -> set[int] | None:
        """Numbers (from 1) of the rows to write; None for all. Compares key bytes, as the cluster does."""
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
        return self._connection.prepared(insert_into(sink.keyspace, sink.table_name, names), repeatable=True)

    def _removal(self, key: Sequence[str]) -> Any:
        sink = self._settings
        return self._connection.prepared(delete_from(sink.keyspace, sink.table_name, key), repeatable=True)

    def _values(self, name: str, array: pa.Array) -> list[Any]:
        column = next(column for column in self._columns if column.name == name)
        try:
            return key_values(array, column.type) if column.is_key else values(array, column.type)
        except Unfit as error:
            raise RowsRefused(f"column {name!r} {error}") from None
        except (pa.ArrowException, ValueError, OverflowError) as error:  # these quote the value
            raise RowsRefused(f"column {name!r} has values that do not fit ({type(error).__name__})") from None

    # errors

    def _check_unchanged(self) -> None:
        now = self._target.columns()
        if not now:
            raise RowsRefused(f"table {self._settings.table} no longer exists")
        if not all(column in now for column in self._columns):
            raise RowsRefused(f"the columns of table {self._settings.table} have changed since the job started")

    def _why(self, error: RowsRefused) -> str:
        """Look for a better reason than the server's, whose text may quote a value."""
        try:
            self._check_unchanged()
        except RowsRefused as better:
            return str(better)
        except Silent:
            pass
        return str(error)

    def _refused(self, code: str, what: str, next_: str) -> FencepostError:
        return TargetRefused(code, what, next=next_, safe="Safe: no row was written.").at(job=self.job, sink=self.sink)

    @property
    def at(self) -> str:
        """The nodes that the sink names; the driver finds the others through them."""
        hosts = self._settings.all_hosts
        more = f" and {len(hosts) - FEW_HOSTS} more" if len(hosts) > FEW_HOSTS else ""
        return f" at {', '.join(f'{host}:{self._settings.port}' for host in hosts[:FEW_HOSTS])}{more}"

    def _unusable(self, error: Exception) -> FencepostError:
        return self._refused(
            "target_unusable",
            f"The cluster{self.at} cannot be used: {error}.",
            "Check that user and password are right, and that the user may SELECT and MODIFY in this keyspace.",
        )

    def _failed(self, epoch: Epoch, error: Silent | RowsRefused, safe: str | None = None) -> FencepostError:
        """For an undecided epoch."""
        if isinstance(error, Silent):
            self._connection.drop()
        if isinstance(error, Denied | NotAllowed):
            refused = self._unusable(error)
            refused.safe = safe or "Safe: the epoch was not decided, nothing of it is visible."
            return refused.at(epoch=epoch)
        if isinstance(error, Silent):
            return self.rows_not_taken(epoch, error, safe)
        return self.rows_refused(epoch, error, safe)


@contextmanager
def _quoting_nothing() -> Iterator[None]:
    """The client's errors about a value quote the value."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise RowsRefused(f"values do not fit their columns ({type(error).__name__})") from None


def _check_key(partition: list[bytes | None], clustering: list[bytes | None]) -> None:
    if None in partition or None in clustering:
        raise RowsRefused("a key column is NULL in some rows")
    if len(partition) == 1 and not partition[0]:
        raise RowsRefused("the partition key is empty in some rows")
    whole = sum(len(part or b"") + 3 for part in partition) if len(partition) > 1 else len(partition[0] or b"")
    if whole > LONGEST_KEY or any(len(part or b"") > LONGEST_KEY for part in clustering):
        raise RowsRefused(f"a key has more than {LONGEST_KEY} bytes in some rows")
