"""A database as table sinks use it: a connection, one transaction at a time, an epoch row, and what each product does.

    TableSession   one per sink    the protocol: pre-commit, vote, commit, recovery (`session.py`)
    Dialect        one per job and database, shared by its sinks    quoting, catalogue, types, bulk load, errors, locks
    TaskTables     of a Dialect, where tasks can fill tables themselves

To support a new database, write a `Dialect`. Never lets a client library's error out: those quote rows.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, Protocol, Self, TypeVar
from weakref import WeakSet, WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.table.mark import Mark, Seen
from fencepost.connectors.table.values import as_column_type, is_text
from fencepost.contract import (
    LETTERS_S,
    LETTERS_SAMPLED,
    Attempt,
    Letter,
    Letters,
    LettersWanted,
    Owner,
    Session,
    check_can_write_file,
)
from fencepost.errors import FencepostError
from fencepost.protocol.records import Epoch, WriterNumber

EPOCH_TABLE = "fencepost_epoch"
"""job, sink, and `MARK_COLUMNS`; key (job, sink)."""
MARK_COLUMNS = tuple(one.name for one in fields(Mark))
"""As they are read and written, in this order."""
TARGET_TABLE = "fencepost_target"
"""id; a single row, the target's identity."""
TOO_MANY = (
    "there are too many letters to sort in time: choose a source, a position or an error, or query the table itself"
)
OLD = "fencepost_old"
"""A name for the row that is there, in statements that compare it with a new one."""
Found = TypeVar("Found")

PLACE = "fencepost_n"
"""An extra column in staged tables: the row's number, so that the last of several rows with the same key wins."""


class Silent(Exception):
    """The target does not answer right now: locked, full, unreachable. Says nothing about what it holds."""


class Late(Silent):
    """A statement took longer than `Dialect.hurry` or the server allows."""


class Denied(Silent):
    """The server turned us away. Retrying is pointless until a person changes a password, a name or a permission."""


class Broken(Silent):
    """The file or its disk failed: a start is refused, a running epoch is retried."""


class Conflict(Silent):
    """The target ended our transaction in favour of another one (a deadlock): retry."""


class RowsRefused(Exception):
    """The target answered that it does not accept the rows. The text names constraints and columns, never a value."""


class BadValue(RowsRefused):
    """A row is refused because of its own values, whatever else the target holds: a NULL, a range, a length, a CHECK.

    Not a duplicate, a foreign key or a trigger: there a single row says nothing.
    """


class NotAllowed(RowsRefused):
    """The target answered that this user lacks a permission."""


class KeyNotUnique(RowsRefused):
    """No unique index covers exactly the key's columns."""


@dataclass(slots=True)
class Voting:
    """The open transaction of a vote: who owns it, and what it contains."""

    lineage: str
    writer: WriterNumber
    epoch: Epoch
    handles: dict[str, str] = field(default_factory=dict)
    """Per sink, the ids of what it applied."""


class TableColumn(Protocol):
    """What we need to know about a column of an existing table, in any database."""

    @property
    def name(self) -> str:
        """In its exact case."""

    @property
    def shown(self) -> str:
        """Its type, for messages."""

    @property
    def required(self) -> bool:
        """NOT NULL without a default."""

    @property
    def generated(self) -> bool:
        """The database computes it."""


@dataclass(slots=True, kw_only=True)
class Table:
    """The table of one sink."""

    sink: str
    name: str
    """As the user wrote it."""
    key: tuple[str, ...]
    """A row replaces the row with the same key; empty if rows are appended."""
    order_by: tuple[pa.Field, ...] = ()
    """A row replaces, or removes, only one that is not greater in these columns; empty: any."""
    columns: list[Any] = field(default_factory=list)
    """The dialect's own `Column`s, as last read; empty before that, or if there is no table."""


class Dialect(ABC):
    """One connection to a database with at most one open transaction, and everything that differs between products.

    Methods raise `Silent` or `RowsRefused`, never the client library's own errors: those may quote a row.
    """

    product: ClassVar[str]
    noun: ClassVar[str] = "target"
    """What messages call it."""
    denied: ClassVar[str] = "Correct the user, password or database name, then start the job again."
    """The "next" of `Denied` and `Broken`."""
    parameter: ClassVar[str] = "%s"
    """The placeholder for a value in a statement."""
    lasting: ClassVar[str] = ""
    """For people: what to set so that commits are durable."""
    exact: ClassVar[str]
    """For people: a column of text in which only identical keys are equal."""
    changes_commit: ClassVar[bool] = False
    """Does CREATE TABLE commit the open transaction?"""
    epochs = EPOCH_TABLE
    targets = TARGET_TABLE
    """Quoted, for use in statements."""

    @property
    def at(self) -> str:
        """Where it is, for people (' at db:5432'); nothing for a file. Never a user or a secret."""
        return ""

    voting: Voting | None = None
    identity: str | None = None
    """Of the target that the job started with: from then on no other target may take its place."""
    locks = False
    """Does reading the epoch row lock it?"""
    _connection: Any = None
    _open: ClassVar[WeakValueDictionary[tuple[Any, ...], Any]] = WeakValueDictionary()

    def __init__(self, *place: Any) -> None:
        self.place = place
        self.lock: RLock = RLock()
        self.users: WeakSet[Session] = WeakSet()

    def shared(self, user: Session, job: str) -> Self:
        """The job's one connection to this database in this process: its sinks there vote and commit together."""
        found: Self = self._open.setdefault((os.getpid(), type(self), job, *self.place), self)
        found.users.add(user)
        return found

    def leave(self, user: Session) -> None:
        """One session fewer; the last one closes the connection, and the next start may find another target."""
        self.users.discard(user)
        if not self.users:
            self.voting = None
            self.identity = None
            self.drop()

    def work_for(self, attempt: Attempt) -> None:
        """This connection belongs to a task attempt."""

    def take_over(self, owner: Owner) -> None:
        """End the server sessions of older writers, which may hold locks."""

    # The transaction.

    @abstractmethod
    def look(self) -> None:
        """Connect if needed and open a transaction for reading: a stalled older writer must not block it."""

    @abstractmethod
    def begin(self, *, patient: bool) -> None:
        """Connect if needed and open a transaction that excludes all other writers of the epoch row."""

    def check_all(self) -> None:
        """Run now the checks that are deferred to COMMIT: after the decision it is too late to fail."""

    @abstractmethod
    def end(self) -> None:
        """COMMIT. If that fails, raise `Silent`: whether it happened is unknown."""

    @abstractmethod
    def undo(self) -> None:
        """ROLLBACK, if anything is open. Must not raise."""

    @abstractmethod
    def drop(self) -> None:
        """Close the connection, so that the next call connects again. Must not raise."""

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement and return its rows."""

    def run_each_epoch(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The same for a statement that runs again and again, which a server may prepare."""
        return self.run(statement, values)

    @property
    def _now(self) -> Any:
        assert self._connection is not None, "begin() comes first"
        return self._connection

    def __del__(self) -> None:
        """Close quietly if the last session was never closed."""
        self.drop()

    # The epoch row and the target's identity.

    def mark(self, job: str, sink: str) -> Mark | None:
        """Read the epoch row inside the transaction, and lock it if we are going to write."""
        rows = self.run_each_epoch(
            f"SELECT {', '.join(MARK_COLUMNS)} FROM {self.bound(self.epochs)}"
            f" WHERE job = {self.parameter} AND sink = {self.parameter}{' FOR UPDATE' if self.locks else ''}",
            (job, sink),
        )
        try:
            return Mark(*rows[0]) if rows else None
        except FencepostError as error:
            raise error.at(job=job, sink=sink) from None

    @abstractmethod
    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row inside the transaction."""

    @abstractmethod
    def make_identity(self) -> str:
        """Create our two tables if they do not exist, and return the random id stored in the target."""

    def ids(self) -> list[str]:
        """The contents of the identity table: normally one id."""
        return [str(found) for (found,) in self.run(f"SELECT id FROM {self.targets}")]

    def identify(self) -> str:
        """Read the target's identity; from now on no other target is accepted."""
        found = self.ids()
        if len(found) != 1:
            raise RowsRefused(f"{TARGET_TABLE} must have exactly one row and has {len(found)}: it was changed by hand")
        [self.identity] = found
        return self.identity

    def check_identity(self) -> None:
        """After each connect: a different target may now answer at the same address."""
        try:
            is_same = self.identity is None or self.ids() == [self.identity]
        except RowsRefused:
            is_same = False
        if not is_same:
            raise Silent("a different database answers at this address than when the job started")

    def peek(self, job: str, sink: str, table: str) -> Seen:
        """Look at the identity and the mark."""
        return self.apart(lambda other: other.seen(job, sink, table))

    def apart(self, read: Callable[[Self], Found]) -> Found:
        """Read through a separate read-only connection, because this one may hold a vote. Creates nothing."""
        other = type(self)(*self.place)
        try:
            other.only_read()
            return other.steadily(lambda: read(other))
        finally:
            other.drop()

    def steadily(self, read: Callable[[], Found]) -> Found:
        """What was read, if it can be trusted."""
        return read()

    def seen(self, job: str, sink: str, table: str) -> Seen:
        """The identity and the mark, if they exist, and whether the table does."""
        ids = self.ids() if self.has(self.targets) else []
        mark = self.mark(job, sink) if self.has(self.epochs) else None
        return Seen(ids[0] if len(ids) == 1 else "", mark, self.has(table))

    def letters(self, table: str, wanted: LettersWanted) -> Letters:
        """Dead letters, without their records: on a connection that only reads."""
        self.hurry(LETTERS_S)
        if not self.has(table):
            return Letters(why=f"table {table!r} does not exist yet")
        place, mark = self.bound(self.named(table)), self.parameter
        source, position, error = map(self.quoted, Letter._fields)
        conditions: list[tuple[str, str]] = []
        if wanted.source is not None:
            conditions.append((f"{source} = {mark}", wanted.source))
        if wanted.position:
            conditions.append((f"{position} LIKE {mark} ESCAPE '!'", f"{_plain(wanted.position)}%"))
        if wanted.error is not None:
            conditions.append((f"{error} LIKE {mark} ESCAPE '!'", "%".join(map(_plain, wanted.error))))
        where = f" WHERE {' AND '.join(text for text, _ in conditions)}" if conditions else ""
        # First what is quick however many there are: it tells by what the others can be narrowed down.
        counted = self.run(f"SELECT {source}, NULL, {error} FROM {place} LIMIT {mark}", (LETTERS_SAMPLED + 1,))
        sample = tuple(map(Letter._make, counted))
        try:
            found = self.run(
                f"SELECT {source}, {position}, {error} FROM {place}{where} ORDER BY 1, 2, 3 LIMIT {mark} OFFSET {mark}",
                (*(value for _, value in conditions), wanted.most + 1, wanted.skip),
            )
        except Late:
            return Letters(sample=sample, is_late=True, why=TOO_MANY)
        return Letters(found=tuple(map(Letter._make, found)), sample=sample)

    @abstractmethod
    def hurry(self, seconds: float) -> None:
        """From now on fail with `Late` a statement of a read-only connection that takes longer."""

    @abstractmethod
    def only_read(self) -> None:
        """Open a read-only transaction, on a connection that lives until `drop`."""

    def rehearse(self) -> None:
        """Open the transaction of a rehearsal, which ends with `drop`."""
        self.look()

    def missing(self) -> str | None:
        """What a start would have to create before any table (a file); None if it exists."""
        return None

    def check_can_make(self) -> None:
        """Raise `Silent` if a start could not create what is missing, or write what exists."""

    # Names and statements.

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Quote an identifier, whatever characters it has."""

    def listed(self, names: Iterable[str]) -> str:
        return ", ".join(map(self.quoted, names))

    def named(self, table: str) -> str:
        """Quote a table name that the user wrote."""
        return self.quoted(table)

    def bound(self, name: str) -> str:
        """A quoted name, escaped for a statement that has placeholders."""
        return name

    def literal(self, text: str) -> str:
        """A string literal, for statements that people run."""
        return "'" + text.replace("'", "''") + "'"

    @abstractmethod
    def declared(self, kind: pa.DataType) -> str:
        """The column type we declare for an Arrow type; KeyError if there is none."""

    def create_statement(self, table: Table, schema: pa.Schema) -> str:
        """A table that fits the DataFrame, with the key as its primary key."""
        parts = [
            f"{self.quoted(item.name)} {self.declared(item.type)}{' NOT NULL' if item.name in table.key else ''}"
            for item in schema
        ]
        if table.key:
            parts.append(f"PRIMARY KEY ({self.listed(table.key)})")
        return f"CREATE TABLE {self.named(table.name)} ({', '.join(parts)})"

    def index_statement(self, table: Table) -> str:
        """A unique index on the key, for a person to run."""
        name = self.quoted(f"{table.name}_key")
        return f"CREATE UNIQUE INDEX {name} ON {self.named(table.name)} ({self.listed(table.key)});"

    def insert_statement(self, table: Table, names: Sequence[str], rows: str) -> str:
        """INSERT the rows; with a key, a row replaces the existing one, unless that is greater by `order_by`."""
        place = f"{self.named(table.name)} AS {OLD}" if table.order_by else self.named(table.name)
        statement = f"INSERT INTO {place} ({self.listed(names)}) {rows}"
        if not table.key:
            return statement
        rest = [self.quoted(name) for name in names if name not in table.key]
        action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "NOTHING"
        if rest and table.order_by:
            action += f" WHERE {self.not_smaller(table, self.of('excluded'), self.of(OLD))}"
        return f"{statement} ON CONFLICT ({self.listed(table.key)}) DO {action}"

    def of(self, row: str) -> Callable[[str], str]:
        """A column of a row that a statement knows by this name."""
        return lambda name: f"{row}.{self.quoted(name)}"

    def not_smaller(self, table: Table, new: Callable[[str], str], old: Callable[[str], str]) -> str:
        """A condition: by `order_by`, the new row is not before the old one. NULL is the smallest. Empty: always."""
        condition = ""
        for item in reversed(table.order_by):
            mine, there = new(item.name), old(item.name)
            a, b = (self.comparable(table, item, value) or value for value in (mine, there))
            if condition:
                equal = f"({a} = {b} OR ({mine} IS NULL AND {there} IS NULL))"
                greater = f"{a} > {b} OR ({mine} IS NOT NULL AND {there} IS NULL)"
                condition = f"({greater} OR ({equal} AND {condition}))"
            else:
                condition = f"({a} >= {b} OR {there} IS NULL)"
        return condition

    # The table.

    def resolved(self, table: str) -> str:
        """The table, by a text that is the same whatever name or address led to it."""
        return repr((*self.place, table.lower()))

    @abstractmethod
    def has(self, table: str) -> bool:
        """Does the table exist where our statements would find it?"""

    @abstractmethod
    def columns(self, table: str) -> list[Any]:
        """The table's columns; empty if it does not exist."""

    @abstractmethod
    def misfits(self, schema: pa.Schema, there: list[Any]) -> list[str]:
        """Every reason why the table does not fit the rows, for people."""

    def merging(self, table: Table, schema: pa.Schema) -> list[str]:
        """Key columns in which keys that Spark tells apart are equal, and why, for people."""
        return []

    def refuse_keys(self, batch: pa.RecordBatch, table: Table) -> None:
        """Reject keys that the table would keep as several rows, or merge with others."""
        refuse_null_keys(batch, table.key)

    @abstractmethod
    def comparable(self, table: Table, item: pa.Field, value: str) -> str | None:
        """What the database compares in place of a value of an `order_by` column, so that its order is Arrow's.

        None if it has no such order, because it stores the values in another way.
        """

    def disordered(self, table: Table) -> list[str]:
        """Columns of `order_by` by which the database cannot compare, and why, for people."""
        return [
            f"column {item.name!r} is {column.shown}, and holds {item.type}"
            for item in table.order_by
            if self.comparable(table, item, "") is None and (column := column_of(table, item.name)) is not None
        ]

    def refuse_unordered(self, batch: pa.RecordBatch, table: Table) -> None:
        """Reject values of `order_by` columns that the table would store as something of another order."""

    def why_it_forgets(self, table: str) -> str | None:
        """The setting because of which an acknowledged commit may be lost in a crash; None if there is none."""
        return None

    def make_table(self, statement: str) -> None:
        """Run a CREATE TABLE; afterwards a transaction must be open again."""
        self.run(statement)

    @abstractmethod
    def try_out(self, table: Table, schema: pa.Schema, *, removes: bool) -> None:
        """Have the database plan the statements that write: it knows its indexes, views and permissions best.

        `removes`: rows are deleted, too. Raise `KeyNotUnique` if there is no index for the key.
        """

    def empty(self, table: Table) -> None:
        """Delete every row inside the transaction. Not TRUNCATE, which commits or lets readers see an empty table."""
        self.run(f"DELETE FROM {self.named(table.name)}")

    @abstractmethod
    def insert(self, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Write rows inside the transaction, in order; raise `RowsRefused` or `Unwritable` if they do not fit."""

    @abstractmethod
    def delete(self, table: Table, keys: pa.RecordBatch) -> None:
        """Remove the rows with these keys, if they are there; the columns are those of the key, each key comes once."""

    def matching(self, table: Table, other: str) -> str:
        """A condition: a row of the table has the key of a row in another one, and is not greater by `order_by`."""
        here, there = self.of(self.named(table.name)), self.of(other)
        conditions = [f"{here(name)} = {there(name)}" for name in table.key]
        return " AND ".join([*conditions, *filter(None, [self.not_smaller(table, there, here)])])


class TaskTables(ABC):
    """What a dialect adds if tasks can fill tables of their own next to the table."""

    staging_rights: ClassVar[str]
    """For people: what a user needs for it."""

    @abstractmethod
    def try_staging(self, table: Table, names: Sequence[str]) -> None:
        """Raise `NotAllowed` if this user may not create tables next to the table."""

    @abstractmethod
    def fill(self, staged: str, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Create a table of this name next to the table and load the rows, durably; call `look` first."""

    @abstractmethod
    def move(self, staged: str, table: Table, names: Sequence[str]) -> None:
        """Copy the rows of a table that a task filled into the target table, inside the transaction."""

    @abstractmethod
    def staged_tables(self) -> list[str]:
        """Names of tables that begin with `fencepost_`, in the schema that holds ours."""

    @abstractmethod
    def drop_tables(self, tables: Sequence[str]) -> None:
        """Drop staged tables; ones that no longer exist are skipped."""


class ServerDialect(Dialect):
    """A database server: the connection outlives transactions, and may be lost between two of them."""

    def bound(self, name: str) -> str:
        """With placeholders, a literal percent sign is written twice."""
        return name.replace("%", "%%")

    def look(self) -> None:
        """A transaction that locks nothing."""
        self._open_transaction(patient=True, locks=False)

    def begin(self, *, patient: bool) -> None:
        """A transaction in which reading the epoch row locks it."""
        self._open_transaction(patient=patient, locks=True)

    def _open_transaction(self, *, patient: bool, locks: bool) -> None:
        for may_be_stale in (self._connection is not None, False):
            try:
                self.connect()
                self.start(patient=patient)
            except (Silent, RowsRefused) as error:
                self.drop()
                if not may_be_stale or isinstance(
                    error, Denied
                ):  # otherwise it was an old connection that the server closed: connect again
                    if isinstance(error, Silent):
                        raise
                    raise (Denied if isinstance(error, NotAllowed) else Silent)(str(error)) from None
            else:
                break
        self.locks = locks

    @abstractmethod
    def connect(self) -> None:
        """Connect, unless there is a live connection."""

    @abstractmethod
    def start(self, *, patient: bool) -> None:
        """Open a transaction."""


class FileDialect(Dialect):
    """A database file: only the first start may create it, never a later one."""

    noun = "file"
    denied = "Use a database file and a folder that this user can write to, on a disk with free space."
    parameter = "?"
    integer: ClassVar[str]
    """The 64-bit integer type."""

    def __init__(self, path: str) -> None:
        super().__init__(os.path.realpath(path))  # sinks of a job in one file share it, whatever path they were given
        self.path = Path(path)

    def missing(self) -> str | None:
        return None if self.path.is_file() else f"file {self.path.name}"

    def check_can_make(self) -> None:
        try:
            check_can_write_file(self.path)
        except OSError as error:
            raise Broken(error.strerror) from None

    def make_identity(self) -> str:
        self.run(
            "CREATE TABLE IF NOT EXISTS fencepost_epoch (job TEXT NOT NULL, sink TEXT NOT NULL, lineage TEXT NOT NULL,"
            f" generation {self.integer} NOT NULL, epoch {self.integer} NOT NULL, handle TEXT NOT NULL,"
            f" writer {self.integer} NOT NULL, format {self.integer} NOT NULL, fencepost TEXT NOT NULL,"
            " PRIMARY KEY (job, sink))"
        )
        self.run("CREATE TABLE IF NOT EXISTS fencepost_target (id TEXT NOT NULL PRIMARY KEY)")
        if not self.ids():
            self.run("INSERT INTO fencepost_target (id) VALUES (?)", (uuid.uuid4().hex,))
        return self.identify()

    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """No condition is needed: only one connection at a time can write to the file."""
        self.run(
            f"INSERT OR REPLACE INTO fencepost_epoch (job, sink, {', '.join(MARK_COLUMNS)})"
            f" VALUES (?, ?{', ?' * len(MARK_COLUMNS)})",
            (job, sink, *astuple(mark)),
        )

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def has(self, table: str) -> bool:
        return bool(self.columns(table))


def _plain(text: str) -> str:
    """For a LIKE in which ! escapes: not a backslash, which some databases take for one in any text."""
    return re.sub("[!%_]", r"!\g<0>", text)


def column_of(table: Table, name: str) -> Any:
    """The dialect's own `Column`, also where the database ignores case; None if there is none."""
    for same in (str, str.lower):
        for column in table.columns:
            if same(column.name) == same(name):
                return column
    return None


Kind = TypeVar("Kind", bound=TableColumn)


def misfits_of(schema: pa.Schema, there: Sequence[Kind], fits: Callable[[pa.DataType, Kind], bool]) -> list[str]:
    """Every reason why a table does not fit the rows, for people; `fits`: can a column store every value unchanged?"""
    by_name = {column.name: column for column in there}
    problems = []
    for item in schema:
        column = by_name.get(item.name)
        kind = as_column_type(item.type)
        if column is None:
            near = next((name for name in by_name if name.lower() == item.name.lower()), None)
            problems.append(f"column {item.name!r} is missing" + (f" (did you mean {near!r}?)" if near else ""))
        elif column.generated:
            problems.append(f"column {item.name!r} is generated and cannot be written")
        elif not fits(kind, column):
            problems.append(f"column {item.name!r} is {column.shown}, which cannot hold every {kind}")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    problems += [f"column {name!r} appears twice" for name in twice]
    problems += [f"column name {name!r} is reserved by fencepost" for name in schema.names if name.lower() == PLACE]
    problems += [
        f"column {column.name!r} is NOT NULL and has no default, but the DataFrame has no such column"
        for column in there
        if column.required and not column.generated and column.name not in schema.names
    ]
    return problems


def refuse_null_keys(batch: pa.RecordBatch, key: Sequence[str]) -> None:
    """NULL keys never conflict with each other, so rows that should replace each other would pile up."""
    for name in key:
        if pc.any(pc.is_null(batch.column(name), nan_is_null=True)).as_py():
            raise BadValue(f"key column {name!r} is NULL or NaN in some rows")


UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""The way in which UUIDs are shown; a uuid column accepts others, and calls them equal."""


def refuse_other_uuids(batch: pa.RecordBatch, columns: Iterable[str]) -> None:
    """Text keys of a uuid column must be spelled as it shows them: Spark takes others for different keys."""
    for name in columns:
        array = batch.column(name)
        if is_text(array.type) and not pc.all(pc.match_substring_regex(array, UUID)).as_py():
            raise BadValue(f"key column {name!r} has UUIDs that are not in lower case with hyphens: use lower(…)")


def refuse_other_json(batch: pa.RecordBatch, columns: Iterable[str], *, doubles: bool = False) -> None:
    """Reject text of which a JSON column would keep only a part: of a field that occurs twice, servers keep the last.

    `doubles`: the server keeps numbers as 64-bit integers or doubles. What is not JSON, it rejects by itself.
    """
    read = (_DOUBLES if doubles else _NUMBERS).decode
    for name in columns:
        array = batch.column(name)
        texts = pc.drop_null(array.flatten() if types.is_nested(array.type) else array)
        for text in texts.to_pylist():
            try:
                read(text)
            except _Changed as error:
                raise BadValue(f"column {name!r} has JSON {error}: use a column of type text") from None
            except RecursionError:
                raise BadValue(f"column {name!r} has JSON that is nested too deeply") from None
            except ValueError:
                continue


class _Changed(Exception):
    """A JSON text that the server would not keep."""


def _once_each(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise _Changed("with the same field twice")


def _whole(text: str) -> None:
    if not -(1 << 63) <= int(text) < 1 << 64:
        raise _Changed("with a number that it would round")


def _double(text: str) -> None:
    if Decimal(text) != Decimal(repr(float(text))):
        raise _Changed("with a number that it would round")


_NUMBERS = json.JSONDecoder(object_pairs_hook=_once_each)
_DOUBLES = json.JSONDecoder(object_pairs_hook=_once_each, parse_int=_whole, parse_float=_double)
"""Made once: `json.loads` would make one for every value."""


def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """With the row's number as an extra last column."""
    first = 0
    for batch in batches:
        place = pa.array(range(first, first + batch.num_rows), pa.int64())
        first += batch.num_rows
        yield batch.append_column(PLACE, place)
