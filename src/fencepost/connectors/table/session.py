"""The driver's side of a table: one transaction that holds the rows and the epoch row.

    vote      BEGIN · read the epoch row · apply the rows · set the epoch row · stay open
    commit    COMMIT                                                        this process voted
              BEGIN · read the epoch row · there? done : apply · COMMIT     after a crash

The epoch row is the target's own record of what it holds. Never answers from anything else: not from a variable, not
from an error code of COMMIT. Never alters an existing table: everything that does not fit is reported at once.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from itertools import takewhile
from typing import Any, Literal, TypeVar, cast

import pyarrow as pa

from fencepost import faults
from fencepost.connectors.table.bulk import Unwritable
from fencepost.connectors.table.database import (
    EPOCH_TABLE,
    MARK_COLUMNS,
    TARGET_TABLE,
    BadValue,
    Broken,
    Conflict,
    Denied,
    KeyNotUnique,
    NotAllowed,
    RowsRefused,
    Silent,
    Table,
    TaskTables,
    Voting,
)
from fencepost.connectors.table.deletion import divided, without
from fencepost.connectors.table.mark import MARK, Mark, MarkChecks, examined, ids_of, instant_seen
from fencepost.connectors.table.sink import TableSink, columns_to_write, table_of, upserts
from fencepost.connectors.table.task_tables import StagedName, owner_of
from fencepost.contract import (
    UNIT,
    Asked,
    Examined,
    Instant,
    Letters,
    LettersWanted,
    OutputMode,
    Owner,
    Rehearsal,
    RowsOfUnit,
    Session,
    SortedRows,
    Territory,
    ends_in,
    names_of,
    parts_of,
    refused_one_by_one,
    sorted_places,
    unheard,
)
from fencepost.errors import FencepostError, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.format import VERSION
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.store.staging import Rows

log = logging.getLogger(__name__)

GREATEST = "greatest"
"""In a handle: a row is compared with the one in the table, and replaces it only if that is not greater."""
ATTEMPTS = 5
"""How often a vote is tried if the target ends it in favour of another transaction (a deadlock)."""

Call = TypeVar("Call", bound=Callable[..., Any])


def alone(call: Call) -> Call:
    """One session at a time: a second run in this process shares the connection, and may start at any moment."""

    @wraps(call)
    def locked(self: TableSession, *args: Any, **named: Any) -> Any:
        with self.database.lock:
            return call(self, *args, **named)

    return cast("Call", locked)


class TableSession(Session, MarkChecks):
    """The driver's side of one table in any database; the differences are in its `Dialect`."""

    def __init__(self, sink: TableSink, job: str) -> None:
        self.job = job
        self.sink = sink.name
        self.settings = sink
        self.table = table_of(sink)
        self.target = f"Table {sink.table!r}"
        self.database = sink.dialect().shared(self, job)
        self.empties = sink.mode == "replace"
        self.deletes = sink.deletes
        self._schema: pa.Schema | None = None
        """Of the rows, as checked by `preflight`."""
        self._territory: Territory | None = None

    # Before the first row.

    @alone
    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the target and the table, create what is missing, return the identity stored in the target."""
        schema = self._check_request(schema, mode)
        self._check_place()
        try:
            self._look()
            if self.database.changes_commit:  # then check first: a refused server must not be left with our tables
                self._check_server()
            identity = self.database.make_identity()
            if not self.database.changes_commit:
                self._check_server()
            self._fit(schema)
            self._claim(schema)
            self._end()
        except (Silent, RowsRefused) as error:
            raise self._unusable(error) from None
        finally:
            self._let_go()
        return f"{identity}:{self.settings.table}"  # another table in the same database is another target

    @alone
    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal | None:
        """Check the target and the table as they are, and create nothing."""
        if self.database.voting is not None:
            return None  # the job runs in this process, and its vote must not be disturbed
        schema = self._check_request(schema, mode)
        table = self.settings.table
        try:
            self.database.check_can_make()
            if missing := self.database.missing():
                self._check_place()
                self._create_statement(schema)
                self._claim(schema)
                return Rehearsal("", (missing, f"table {table}"))
            seen = self.database.peek(self.job, self.sink, table)
            self.database.rehearse()
            self._check_server()
            if is_there := self._misfits(schema) is not None:
                self._fit(schema, only_look=True)
            else:
                self._check_may_make(schema, seen.mark)
                self._create_statement(schema)
            self._claim(schema)
        except (Silent, RowsRefused) as error:
            raise self._unusable(error) from None
        finally:
            self._drop()
        identity = f"{seen.identity}:{table}" if seen.identity else ""
        ours = () if identity else (f"tables {EPOCH_TABLE} and {TARGET_TABLE}",)
        return Rehearsal(identity, ours if is_there else (*ours, f"table {table}"))

    def territory(self) -> Territory | None:
        """The table, and with a key the other columns."""
        return self._territory

    def _claim(self, schema: pa.Schema) -> None:
        key = frozenset(name.lower() for name in self.table.key)
        columns = frozenset(name.lower() for name in schema.names) - key
        removes = self.empties or self.deletes is not None  # whole rows, whoever wrote their columns
        way: Literal["append", "key", "all"] = "all" if removes else "key" if key else "append"
        self._territory = Territory(self.database.resolved(self.table.name), way, key, columns)

    def _check_request(self, schema: pa.Schema, mode: OutputMode) -> pa.Schema:
        """The columns that are written."""
        return columns_to_write(self.settings, schema, mode, self.job)

    def _check_place(self) -> None:
        if not self.settings.create and self.database.missing():
            what = f"The {self.database.noun} does not exist."
            raise self._refused("target_missing", what, "Create the database, or set create=True.")

    def _check_server(self) -> None:
        """Refuse a server that may lose acknowledged commits, unless the user set `durable`."""
        if self.settings.durable is None and (why := self.database.why_it_forgets(self.table.name)):
            raise self._refused(
                "target_forgets",
                f"The server may lose commits that it has acknowledged: {why}.",
                f"{self.database.lasting} To accept the risk: durable=False with guarantee='at_least_once'.",
            )

    def _misfits(self, schema: pa.Schema) -> list[str] | None:
        """Every reason why the table does not fit the rows, for people; None if there is no table."""
        self._schema = schema
        self.table.order_by = self._compared(schema, names_of(self.settings.order_by)).order_by
        self.table.columns = self.database.columns(self.table.name)
        if not self.table.columns:
            return None
        return [*self.database.misfits(schema, self.table.columns), *self._unwritten(self.table.columns)]

    def _unwritten(self, there: list[Any]) -> Iterator[str]:
        """A column that the table has and `deletes` takes out of the rows would keep its old values."""
        for column in there:
            if self.deletes is not None and column.name.lower() == self.deletes.lower():
                yield f"column {column.name!r} has the name of the column that deletes= names, which is not written"

    def _fit(self, schema: pa.Schema, *, only_look: bool = False) -> None:
        """Compare the columns and report everything at once: nobody wants to fix a table one error at a time."""
        table = self.settings.table
        problems = self._misfits(schema)
        if problems is None:
            self._check_may_make(schema, self.database.mark(self.job, self.sink))
            self.database.make_table(self._create_statement(schema))
            problems = self._misfits(schema) or []
        if problems:
            raise self._refused(
                "schema_does_not_fit",
                f"Table {table!r} does not fit the DataFrame: {'; '.join(problems)}.",
                "Change the table or the DataFrame's columns (select, cast, alias).",
            )
        if self.table.key and (merging := self.database.merging(self.table, schema)):
            raise self._refused(
                "keys_merge",
                f"Table {table!r} treats keys as equal that are different in Spark: {'; '.join(merging)}.",
                f"Declare the key as {self.database.exact}: there only identical keys are equal.",
            )
        if disordered := self.database.disordered(self.table):
            raise self._refused(
                "order_differs",
                f"Table {table!r} cannot compare rows by order_by= as Spark does: {'; '.join(disordered)}.",
                "Order by a number, a time or text in a column of the plain type for it; cast it in the DataFrame.",
            )
        try:
            self.database.try_out(self.table, schema, removes=self.empties or self.deletes is not None)
            if self.settings.staging != "checkpoint" and not (only_look and self.database.changes_commit):
                self._try_staging(schema)
        except KeyNotUnique:
            raise self._refused(
                "key_not_unique",
                f"Table {table!r} has no PRIMARY KEY or UNIQUE index on exactly the columns of key=.",
                self.database.index_statement(self.table),
            ) from None
        except RowsRefused as error:
            raise self._refused(
                "schema_does_not_fit",
                f"Table {table!r} cannot be written: {error}.",
                "Name a table that this user can insert into.",
            ) from None

    def _try_staging(self, schema: pa.Schema) -> None:
        """May the tasks create tables? If not, with "auto" each task sends its rows to the driver."""
        try:
            self._task_tables.try_staging(self.table, schema.names)
        except NotAllowed as error:
            if self.settings.staging == "target":
                raise self._refused(
                    "staging_not_allowed",
                    f'With staging="target" the tasks create tables next to {self.settings.table!r}, but {error}.',
                    f'Grant {self._task_tables.staging_rights}, or use staging="checkpoint".',
                ) from None
            log.warning("sink %s: tasks cannot create tables (%s), so the driver writes all rows", self.sink, error)

    def _check_may_make(self, schema: pa.Schema, mark: Mark | None) -> None:
        table = self.settings.table
        if mark is not None:
            raise self._refused(
                "table_lost",
                f"Table {table!r} is gone, although this sink of this job has already written epochs to it.",
                "Restore the table from a backup, or name the one that the job wrote to.",
            )
        if not self.settings.create:
            next_ = f"Create it, or set create=True:\n{self._create_statement(schema)}"
            raise self._refused("target_missing", f"Table {table!r} does not exist.", next_)

    def _create_statement(self, schema: pa.Schema) -> str:
        try:
            return self.database.create_statement(self.table, schema)
        except KeyError as kind:
            raise RowsRefused(f"{self.database.product} has no type for {kind}") from None

    def examine(self, asked: Asked) -> Examined:
        """By the mark, through a separate connection."""
        try:
            seen = self.database.peek(self.job, self.sink, self.settings.table)
        except (Silent, RowsRefused) as error:
            return unheard(asked, str(error))
        except FencepostError as error:  # its mark is of a newer fencepost, or was changed
            return unheard(asked, error.what)
        return examined(seen, asked, self.settings.table)

    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        """By the mark, in the same way: a table has no older state than the one that it has now."""
        try:
            seen = self.database.peek(self.job, self.sink, self.settings.table)
        except (Silent, RowsRefused) as error:
            what = "refused us" if isinstance(error, Denied) else "does not answer"
            return Instant.unheard(f"it {what}: {error}")
        except FencepostError as error:  # its mark is of a newer fencepost, or was changed
            return Instant.unheard(error.what)
        return instant_seen(seen, asked, epoch, self.settings.table)

    def letters(self, wanted: LettersWanted) -> Letters:
        """Through a separate connection, too, which gives up soon."""
        try:
            return self.database.apart(lambda other: other.letters(self.settings.table, wanted))
        except (Silent, RowsRefused) as error:
            return Letters(heard=False, why=str(error))

    @alone
    def open(self, owner: Owner) -> None:
        """Release what an older writer in this process holds, then check the mark."""
        super().open(owner)
        self._held = owner.held.get(self.sink)
        found = None
        try:
            self._look()
            if self.database.voting is None:  # otherwise a newer writer in this process has its vote open
                self.database.take_over(owner)
            found = self.database.mark(self.job, self.sink)
        except (Silent, RowsRefused) as error:
            raise self._unusable(error if isinstance(error, Denied | NotAllowed) else Silent(str(error))) from None
        finally:
            self._let_go()
        self.check_at_start(found)

    @property
    def how_to_mark(self) -> tuple[str, str]:
        """Statements for people to run."""
        job, sink, lineage = map(self.database.literal, (self.job, self.sink, self.owner.lineage))
        epochs, columns = self.database.epochs, f"job, sink, {', '.join(MARK_COLUMNS)}"
        remove = f"DELETE FROM {epochs} WHERE job = {job} AND sink = {sink};"
        values = (
            f"{job}, {sink}, {lineage}, {self.owner.generation}, {{epoch}}, 'by hand', 0, {MARK.number}, '{VERSION}'"
        )
        return remove, f"{remove} INSERT INTO {epochs} ({columns}) VALUES ({values});"

    # An epoch.

    @alone
    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are already staged; name them."""
        # An earlier attempt of this epoch may have voted here and failed elsewhere: its rows must not be committed.
        self._let_go()
        count = rows.count
        if not count and not self.empties:
            return None
        kept = rows.kept if count else ()
        assert bool(kept) == bool(count), "an apply sink declares keeps_rows"
        order = names_of(self.settings.order_by)
        body = {
            **({"order_by": list(order), "keeps": GREATEST} if order else {}),
            **({"deletes": self.deletes} if self.deletes else {}),
        }
        return Handle(id=self.owner.handle_id(epoch), sink=self.sink, rows=count, kept=kept, body=body)

    def handles(self, epoch: Epoch, rows: Rows) -> tuple[Handle, ...]:
        """One for what the driver has to write, and one for each table that a task filled."""
        if not rows.kept or UNIT not in rows.schema.names:
            return super().handles(epoch, rows)
        units = ends_in(rows)
        for facts in units.values():
            if "refused" in facts:
                raise self.rows_refused(epoch, RowsRefused(facts["refused"]))
            if "denied" in facts:
                raise self._unusable(Denied(facts["denied"])).at(epoch=epoch)
        plain = self.pre_commit(epoch, RowsOfUnit(rows, None))
        filled = [
            Handle(name, self.sink, facts["rows"], (), {"table": name, "columns": facts["columns"]})
            for name, facts in units.items()
        ]
        return (*(() if plain is None else (plain,)), *filled)

    @alone
    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote by doing the work: whatever the target rejects, it rejects here, before the decision."""
        for attempt in range(ATTEMPTS):
            try:
                self._vote(epoch, handles)
            except Conflict as error:
                is_first = self.database.voting is None or not self.database.voting.handles
                self.rollback()
                if is_first and attempt < ATTEMPTS - 1:  # otherwise another sink's vote was lost with it
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

    @alone
    def refused(self, epoch: Epoch, batch: pa.RecordBatch) -> dict[int, str]:
        """Try the rows, then halves of what is refused, each in a transaction that is rolled back.

        In the order in which they are written: of two rows with one key the target may see only the last.
        """
        order = names_of(self.settings.order_by)
        places = sorted_places(pa.Table.from_batches([batch]), order).to_pylist() if order else range(batch.num_rows)
        try:
            self._begin(patient=True)
            self._check_columns()  # a table that has changed refuses every row
            found = dict(refused_one_by_one(batch.take(pa.array(places, pa.int64())), self._tried))
        except Silent as error:
            raise self._not_written(epoch, error) from None
        except RowsRefused as error:
            raise self.rows_refused(epoch, error) from None
        finally:
            self._let_go()
        return {places[place]: str(error) for place, error in found.items() if isinstance(error, BadValue)}

    def _tried(self, batch: pa.RecordBatch) -> RowsRefused | None:
        """Why the target refuses these rows; None if it accepts them."""
        try:
            self._begin(patient=True)
            if self.empties:
                self.database.empty(self.table)
            self._put(batch.schema, iter([batch]), self.deletes, names_of(self.settings.order_by))
        except NotAllowed:
            raise
        except RowsRefused as error:
            return error
        finally:
            self._let_go()
        return None

    def _vote(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        self._join(epoch)
        self.check_before_vote(self.database.mark(self.job, self.sink), epoch)
        self._apply_all((handle, self.owner.staging.rows(handle.kept, self.sink)) for handle in handles)
        faults.reach("vote.during")
        self._set_mark(epoch, handles)
        self.database.check_all()
        assert self.database.voting is not None
        self.database.voting.handles[self.sink] = ids_of(handles)

    def _join(self, epoch: Epoch) -> None:
        """Join the vote's transaction: a new one, or that of another sink of this job in the same database.

        Two sinks of a job may share a database that has a single write lock. With one transaction each, the second
        vote would wait for the first one to end, which never happens.
        """
        voting = self.database.voting
        if voting is None or not self._is_mine(voting, epoch) or self.sink in voting.handles:
            self._begin(patient=True)
            self.database.voting = Voting(self.owner.lineage, self.owner.writer, epoch)

    @alone
    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """COMMIT what the vote left open; after a crash read the epoch row, and apply again what is missing."""
        try:
            if self._voted(epoch, handles):
                self._end()
            else:
                self._finish(epoch, handles)
            self.note_done(epoch)
            self._after_commit(epoch, handles)
            outcome = Outcome.DONE
        except Silent as error:
            # Even COMMIT itself may have failed: only a new connection can tell whether it happened.
            log.warning("sink %s: commit of epoch %d is in doubt: %s", self.sink, epoch, error)
            self._drop()
            outcome = Outcome.IN_DOUBT
        return {handle.id: outcome for handle in handles}

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
            self._apply_all((handle, self.owner.staging.rows_again(handle)) for handle in handles)
            self._set_mark(epoch, handles)
            self.database.check_all()
            self._end()
        except RowsRefused as error:
            raise self.apply_refused(epoch, error) from None
        finally:
            self._let_go()

    def _after_commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        """Drop the staged tables, and those of failed attempts."""
        if any("table" in handle.body for handle in handles):
            self._drop_through(WriterNumber(self.owner.writer + 1), epoch)

    @alone
    def write(self, epoch: Epoch, rows: Rows) -> None:
        """All rows in one transaction. Sent again, they are duplicated, or with a key, unchanged.

        Rows that replace others also move the mark, so that an older epoch cannot revert them.
        """
        try:
            self._begin(patient=True)
            guarded = upserts(self.settings) or self.empties
            if guarded and self.is_next(self.database.mark(self.job, self.sink), epoch):
                self._set_mark(epoch, ())
            if self.empties:
                self.database.empty(self.table)
            order = names_of(self.settings.order_by)
            self._apply(SortedRows.of(rows, order), self.deletes, order)
            self._end()
        except RowsRefused as error:
            raise self.rows_refused(epoch, error) from None
        except Silent as error:
            self._drop()
            raise self._not_written(epoch, error, safe="The epoch's rows may or may not be in the target.") from None
        finally:
            self._let_go()

    # Rows, inside the open transaction.

    def _apply_all(self, units: Iterator[tuple[Handle, Rows]]) -> None:
        """With mode="replace" an epoch replaces the whole table. With a key, the order of the tasks counts."""
        if self.empties:
            self.database.empty(self.table)
        known = list(units)
        kept = [rows for handle, rows in known if "table" not in handle.body and handle.rows]
        tables = {handle.id: handle for handle, _ in known if "table" in handle.body}
        if self.table.key and kept and tables:
            self._apply_in_order(kept[0], tables)
            return
        for handle, rows in known:
            self._apply_unit(handle, rows)

    def _apply_in_order(self, rows: Rows, tables: Mapping[str, Handle]) -> None:
        """Some tasks filled tables, others sent their rows: the kept rows say in which order."""
        schema = RowsOfUnit(rows, None).schema
        for unit, batches in parts_of(rows):
            if unit is None:
                self._insert(schema, batches, self.table)
                self._check_columns()
            else:
                self._apply_unit(tables[unit], rows)

    def _apply_unit(self, handle: Handle, rows: Rows) -> None:
        """Move what a task staged, or write what the driver kept; then check that the table still stores it unchanged.

        The check comes last because from now until COMMIT our locks prevent changes to the columns.
        """
        if "table" in handle.body:
            self._see_columns(self.table)
            self._task_tables.move(handle.body["table"], self.table, handle.body["columns"])
        elif handle.rows:
            plain = RowsOfUnit(rows, None) if UNIT in rows.schema.names else rows
            order = tuple(handle.body.get("order_by", ()))
            # Without the word it was decided by an older fencepost, which sorted the rows and compared nothing.
            compared = order if handle.body.get("keeps") == GREATEST else ()
            self._apply(SortedRows.of(plain, order), handle.body.get("deletes"), compared)
        self._check_columns()

    def _check_columns(self) -> None:
        there = self._columns()
        if self._schema is not None and (problems := self.database.misfits(self._schema, there)):
            raise RowsRefused(f"it has changed since the job started: {'; '.join(problems)}")
        if self.table.columns and there != self.table.columns:
            self.table.columns = there
            raise Conflict("its columns have changed since the job started, and must be checked again")

    def _apply(self, rows: Rows, deletes: str | None, order: Sequence[str]) -> None:
        """Write rows that the driver kept, in order."""
        if rows.kept:
            self._put(rows.schema, rows.batches(), deletes, order)

    def _put(
        self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], deletes: str | None, order: Sequence[str]
    ) -> None:
        """Some rows at a time: those to remove first, because another row may take what was unique in them."""
        schema = without(schema, deletes)
        table = self._compared(schema, order)
        if deletes is None:
            self._insert(schema, batches, table)
            return
        for gone, kept in divided(batches, table.key, deletes, [item.name for item in table.order_by]):
            if gone.num_rows:
                self._delete(gone, table)
            if kept.num_rows:
                self._insert(schema, iter([kept]), table)

    def _compared(self, schema: pa.Schema, order: Sequence[str]) -> Table:
        """The table, with the columns in which new rows are compared with those that are there.

        Only as far as they are written: behind the column of `deletes`, nothing is left to compare with.
        """
        there = takewhile(schema.names.__contains__, order)
        return replace(self.table, order_by=tuple(schema.field(name) for name in there))

    def _delete(self, keys: pa.RecordBatch, table: Table) -> None:
        self._see_columns(table)
        try:
            [checked] = self._checked(iter([keys]), table)
            self.database.delete(table, checked)
        except Unwritable as error:
            raise BadValue(str(error)) from None

    def _insert(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], table: Table) -> None:
        self._see_columns(table)
        try:
            self.database.insert(table, schema, self._checked(batches, table))
        except Unwritable as error:
            raise BadValue(str(error)) from None

    def _checked(self, batches: Iterator[pa.RecordBatch], table: Table) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.database.refuse_keys(batch, table)
            self.database.refuse_unordered(batch, table)
            yield batch

    def _see_columns(self, table: Table) -> None:
        self.table.columns = table.columns = self.table.columns or self._columns()

    def _columns(self) -> list[Any]:
        found = self.database.columns(self.table.name)
        if not found:
            raise RowsRefused("it no longer exists")
        return found

    def _set_mark(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        self.database.set_mark(self.job, self.sink, self.mark_of(epoch, handles))

    # The transaction.

    @alone
    def rollback(self, *, undecided: bool = True) -> None:
        self._let_go()

    @alone
    def close(self) -> None:
        """Close the connection, once no other sink of this job uses it."""
        self.database.leave(self)

    def _look(self) -> None:
        self._let_go()
        if self.database.voting is None:
            self.database.look()

    def _begin(self, *, patient: bool) -> None:
        self._let_go()
        if self.database.voting is not None:
            raise Silent("a newer run of the job in this process holds the transaction")
        self.database.begin(patient=patient)

    def _end(self) -> None:
        self.database.end()
        self.database.voting = None

    def _let_go(self) -> None:
        """Roll back, unless a newer writer, or one of another checkpoint, opened the transaction in this process."""
        voting, owner = self.database.voting, self._owner
        mine = voting is None or owner is None or (voting.lineage == owner.lineage and voting.writer <= owner.writer)
        if mine:
            self.database.voting = None
            self.database.undo()

    def _drop(self) -> None:
        self._let_go()
        if self.database.voting is None:
            self.database.drop()

    # Tables that tasks filled.

    @property
    def _task_tables(self) -> TaskTables:
        """The database once more: only a sink that can stage in it has handles with tables."""
        assert isinstance(self.database, TaskTables)
        return self.database

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Tables of older writers; those of committed epochs are not orphans and are dropped right away."""
        if at_leisure or not isinstance(self.database, TaskTables):
            return ()
        found = self._mark_now()
        if found is not None and found.lineage == self.owner.lineage:
            self._drop_through(before, Epoch(found.epoch))
        return tuple(Handle(str(name), self.sink, 0, (), {"table": str(name)}) for name in self._staged(before))

    def abort(self, handle: Handle) -> None:
        if "table" in handle.body:
            self._drop_staged([handle.body["table"]])

    def _drop_through(self, before: WriterNumber, epoch: Epoch) -> None:
        self._drop_staged([str(name) for name in self._staged(before) if name.epoch <= epoch])

    @alone
    def _mark_now(self) -> Mark | None:
        try:
            self._look()
            return self.database.mark(self.job, self.sink)
        except (Silent, RowsRefused):
            return None  # whoever needs the target next will report it
        finally:
            self._let_go()

    @alone
    def _drop_staged(self, tables: list[str]) -> None:
        try:
            if tables:
                self._begin(patient=False)  # it ends with COMMIT, so no newer writer's vote may be open
                self._task_tables.drop_tables(tables)
                self._end()
        except (Silent, RowsRefused) as error:
            log.warning("sink %s: %d staged tables cannot be dropped yet: %s", self.sink, len(tables), error)
        finally:
            self._let_go()

    @alone
    def _staged(self, before: WriterNumber) -> list[StagedName]:
        try:
            self._look()
            names = [StagedName.read(table) for table in self._task_tables.staged_tables()]
        except (Silent, RowsRefused) as error:
            log.warning("sink %s: staged tables could not be listed: %s", self.sink, error)
            return []
        finally:
            self._let_go()
        mine = owner_of(self.job, self.sink)
        return [
            name
            for name in names
            if name and name.owner == mine and self.owner.is_older(name.lineage, name.writer, before)
        ]

    # Errors.

    def _refused(self, code: str, what: str, next_: str) -> FencepostError:
        return TargetRefused(code, what, next=next_, safe="Safe: nothing was written.").at(job=self.job, sink=self.sink)

    @property
    def at(self) -> str:
        """As the dialect knows it."""
        return self.database.at

    def rows_refused(self, epoch: Epoch, error: Exception, safe: str | None = None) -> FencepostError:
        """Tells what can be done with rows that are refused one by one."""
        found = super().rows_refused(epoch, error, safe)
        if isinstance(error, BadValue) and self.settings.capabilities.names_rows:
            found.next += " To write the other rows: job.write(…, on_bad_record='dead_letter', dead_letters=…)."
        return found

    def _unusable(self, error: Exception) -> FencepostError:
        """At a start: refuse what a person has to change, retry what may pass by itself."""
        what = f"The {self.database.noun}{self.at} cannot be used: {error}."
        if isinstance(error, Denied | Broken):
            return self._refused("target_unusable", what, self.database.denied)
        if isinstance(error, NotAllowed):
            next_ = "Grant it: role.sql and role_without_create.sql next to the sink's module list what a job needs."
            return self._refused("target_unusable", what, next_)
        if isinstance(error, Silent):
            return self.target_silent(error)
        return self._refused("target_unusable", what, "Fix it, or name another one.")

    def _not_written(self, epoch: Epoch, error: Silent, safe: str | None = None) -> FencepostError:
        if isinstance(error, Denied):
            return self._unusable(error).at(epoch=epoch)
        return self.rows_not_taken(epoch, error, safe)
