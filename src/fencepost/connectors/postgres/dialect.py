"""PostgreSQL: one connection, the catalogue, the epoch row, how rows are written, and what its errors mean.

Never assumes that COMMIT happened because nothing was raised: in a failed transaction the server answers COMMIT with
ROLLBACK. Never lets psycopg's errors out: the server puts values into their texts.
"""

from __future__ import annotations

import logging
import re
import select
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors

from fencepost.connectors.postgres import bulk, sqlstate
from fencepost.connectors.postgres.columns import (
    Column,
    TableName,
    declared,
    merging_types,
    misfits,
    quoted,
    read_name,
    refuse_blanks,
)
from fencepost.connectors.table.database import (
    EPOCH_TABLE,
    MARK_COLUMNS,
    PLACE,
    TARGET_TABLE,
    BadValue,
    Conflict,
    Denied,
    KeyNotUnique,
    Late,
    NotAllowed,
    RowsRefused,
    ServerDialect,
    Silent,
    Table,
    TaskTables,
    column_of,
    refuse_other_uuids,
)
from fencepost.connectors.table.mark import Mark
from fencepost.connectors.table.values import as_column_type, is_text
from fencepost.contract import Attempt, Owner

log = logging.getLogger(__name__)

OLDEST = 14
"""The first version whose pg_terminate_backend waits for the end of the session."""
PATIENT = "15s"
"""How long a vote waits for a lock: nothing is decided yet, and a failed vote costs a restart."""
IMPATIENT = "500ms"
"""How long a commit waits for a lock: the protocol itself retries it, with backoff."""
IDLE = "60s"
"""How long the server keeps an idle transaction open. It is idle between vote and decision, which takes milliseconds; a
driver that stalls there must not keep its locks."""

SETTINGS = {
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
}
"""Unless the user's dsn says otherwise. libpq itself uses TLS where the server offers it (sslmode=prefer)."""
SESSION = {
    "client_min_messages": "warning",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "array_nulls": "on",
    "plan_cache_mode": "force_generic_plan",
}
"""Overrides what is set for the role or the database: how our rows are read must not depend on it."""
OURS = "fencepost.session"
"""Set in each session to the number that the client knows it by."""
ONLY_IF_TOLD = 1 << 30
"""Times that a statement runs before the client prepares it by itself."""
POOLED = (
    "a pooler between the job and the server gives each transaction another session (transaction mode), without the"
    " settings that make commits durable: connect to the server itself, or use pool_mode = session"
)


class PostgresDialect(ServerDialect, TaskTables):
    """One connection, shared by the sinks of a job in the same database and schema."""

    product = "PostgreSQL"
    lasting = "Set fsync = on and full_page_writes = on, and use a table that is not UNLOGGED."
    exact = 'text, with a deterministic collation such as "C"'
    staging_rights = "CREATE on its schema and SELECT on the table"
    _connection: psycopg.Connection[Any] | None = None

    def __init__(self, dsn: str, schema: str) -> None:
        super().__init__(dsn, schema)
        self._dsn = dsn
        self._schema = schema or None
        self._name = "fencepost"
        self.epochs = str(TableName(self._schema, EPOCH_TABLE))
        self.targets = str(TableName(self._schema, TARGET_TABLE))

    @property
    def at(self) -> str:
        """As the client reads it from the DSN, the environment's PGHOST and PGPORT aside."""
        try:
            told = psycopg.conninfo.conninfo_to_dict(self._dsn)
        except psycopg.Error:
            return ""
        host = told.get("host") or told.get("hostaddr")
        return f" at {host}:{told.get('port') or 5432}" if host else ""

    # The transaction.

    def connect(self) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._dsn, self._name)
            self.check_identity()

    def start(self, *, patient: bool) -> None:
        """READ WRITE, because a standby refuses it."""
        patience = PATIENT if patient else IMPATIENT
        try:
            self._begin("READ COMMITTED READ WRITE", patience)
        except RowsRefused:
            raise Silent(READ_ONLY) from None

    def only_read(self) -> None:
        self._connection = connect(self._dsn, "fencepost verify")
        self._begin("REPEATABLE READ READ ONLY", IMPATIENT)

    def hurry(self, seconds: float) -> None:
        self.run(f"SET LOCAL statement_timeout = {round(seconds * 1000)}")

    def _begin(self, how: str, patience: str) -> None:
        """In our own session: a pooler in transaction mode may give us that of somebody else, without our settings."""
        ours = f"SELECT current_setting('{OURS}', true)"
        with explained():
            answer = self._now.execute(f"BEGIN ISOLATION LEVEL {how}; SET LOCAL lock_timeout = '{patience}'; {ours}")
            while answer.nextset():
                pass
            [(found,)] = answer.fetchall()
        if found != str(self._now.info.backend_pid):
            self.drop()
            raise Denied(POOLED)

    def check_all(self) -> None:
        self.run("SET CONSTRAINTS ALL IMMEDIATE")

    def end(self) -> None:
        """COMMIT, and check that the server confirms it."""
        try:
            answer = self._now.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise Silent(f"COMMIT failed ({words(error)})") from None
        if answer != "COMMIT":
            raise Silent("the transaction had already failed before COMMIT")

    def undo(self) -> None:
        """ROLLBACK; if even that fails, closing the connection does it."""
        if self._connection is None:
            return
        try:
            if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self.drop()

    def drop(self) -> None:
        """Close; the server rolls an open transaction back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Without values it may be several statements: one round trip for all of them."""
        return self._execute(statement, values)

    def run_each_epoch(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Planned once per connection: planning our look at the catalogue takes several times as long as the look.

        Note: no pipeline. The client ends one with a flush, after which the server no longer counts the time that the
        transaction is idle (`IDLE`).
        """
        return self._execute(statement, values, prepare=True)

    def _execute(self, statement: str, values: Sequence[Any], *, prepare: bool = False) -> list[Any]:
        with explained():
            found = self._now.execute(statement, values or None, prepare=prepare)
            return found.fetchall() if found.description else []

    def work_for(self, attempt: Attempt) -> None:
        """Named so that a driver that takes over can end the sessions of tasks too."""
        self._name = session_name(attempt.lineage, f"{attempt.writer}/task")

    def take_over(self, owner: Owner) -> None:
        """End the sessions of older writers of this lineage; a role may terminate its own sessions."""
        self.undo()  # a name set inside a transaction is lost at ROLLBACK
        self._name = session_name(owner.lineage, owner.writer)
        self.run("SELECT set_config('application_name', %s, false)", (self._name,))
        prefix = session_name(owner.lineage, "")
        sessions = self.run(
            "SELECT pid, application_name FROM pg_stat_activity WHERE starts_with(application_name, %s)", (prefix,)
        )
        for pid, name in sessions:
            writer = name[len(prefix) :].partition("/")[0]
            if writer.isdecimal() and int(writer) < owner.writer:
                self._end_session(pid)
        self.look()

    def _end_session(self, pid: int) -> None:
        try:
            self.run("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        except RowsRefused:
            log.warning("session %d of an older driver belongs to another role: waiting for it, up to %s", pid, IDLE)

    # The epoch row and the target's identity.

    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row, which only moves forward.

        A missing row cannot be locked: if two drivers both found none, and both are about to commit the same epoch,
        the second one finds out here.
        """
        written = self.run_each_epoch(self._set_mark_statement(), (job, sink, *astuple(mark)))
        if not written:
            raise Silent("another driver has written this epoch or a newer one in the meantime")

    def _set_mark_statement(self) -> str:
        return (
            f"INSERT INTO {self.bound(self.epochs)} AS old (job, sink, {', '.join(MARK_COLUMNS)})"
            f" VALUES (%s, %s{', %s' * len(MARK_COLUMNS)}) ON CONFLICT (job, sink) DO UPDATE"
            f" SET {', '.join(f'{name} = excluded.{name}' for name in MARK_COLUMNS)}"
            " WHERE (old.generation, old.epoch) < (excluded.generation, excluded.epoch) RETURNING 1"
        )

    def make_identity(self) -> str:
        """The random id in the database, created by the first start."""
        if (version := self._now.info.server_version // 10_000) < OLDEST:
            raise RowsRefused(f"PostgreSQL {OLDEST} or newer is needed, and this is {version}")
        if not self.has(self.targets) or not self.has(self.epochs):
            self.run(
                "SELECT pg_advisory_xact_lock(7038625401)"
            )  # of two simultaneous first starts, one creates the tables
            # Checked first: CREATE … IF NOT EXISTS needs the CREATE privilege, which the role may not have.
            if not self.has(self.epochs):
                self.run(
                    f"CREATE TABLE {self.epochs} (job text, sink text, lineage text NOT NULL, generation bigint"
                    " NOT NULL, epoch bigint NOT NULL, handle text NOT NULL, writer bigint NOT NULL,"
                    " format bigint NOT NULL, fencepost text NOT NULL, PRIMARY KEY (job, sink))"
                )
            if not self.has(self.targets):
                self.run(f"CREATE TABLE {self.targets} (id text PRIMARY KEY)")
                self.run(f"INSERT INTO {self.bound(self.targets)} VALUES (%s)", (uuid.uuid4().hex,))
        try:
            self.run(
                "EXPLAIN " + self._set_mark_statement(), ("", "", "", 0, 0, "", 0, 0, "")
            )  # checks privileges and columns
            return self.identify()
        except RowsRefused as error:
            raise RowsRefused(f"{TARGET_TABLE} or {EPOCH_TABLE} cannot be used: {error}") from None

    # The table.

    def quoted(self, name: str) -> str:
        return quoted(name)

    def named(self, table: str) -> str:
        return str(read_name(table))

    def _beside(self, table: str) -> str:
        """One of ours, in the schema of the table."""
        return str(TableName(self._schema, table))

    def declared(self, kind: pa.DataType) -> str:
        return declared(kind)

    def index_statement(self, table: Table) -> str:
        return f"CREATE UNIQUE INDEX ON {self.named(table.name)} ({self.listed(table.key)});"

    def resolved(self, table: str) -> str:
        """The start time tells servers apart, and needs no privilege."""
        name = read_name(table)
        return repr(self.run(_RESOLVED, (name.schema, name.table, self.named(table))))

    def has(self, table: str) -> bool:
        """Where the search path finds it."""
        return self.run("SELECT to_regclass(%s) IS NOT NULL", (self.named(table),)) == [(True,)]

    def columns(self, table: str) -> list[Column]:
        found = self.run_each_epoch(_COLUMNS, (self.named(table),))
        if {row[0] for row in found} - {"r", "p"}:
            raise RowsRefused(f"{self.named(table)} is a view or a foreign table")
        if any(row[1] for row in found):
            raise RowsRefused(f"{self.named(table)} has an ON INSERT rule, which COPY ignores: use a trigger instead")
        return [Column(**dict(zip(_FIELDS, row[2:], strict=True))) for row in found]

    def misfits(self, schema: pa.Schema, there: list[Column]) -> list[str]:
        return misfits(schema, there)

    def merging(self, table: Table, schema: pa.Schema) -> list[str]:
        """Types with several spellings of a value, and collations in which different texts are equal."""
        found = merging_types(schema, table.columns, table.key)
        collations = self.run(_COLLATIONS, (self.named(table.name), list(table.key)))
        return found + [f"column {name!r} has the nondeterministic collation {said!r}" for name, said in collations]

    def refuse_keys(self, batch: pa.RecordBatch, table: Table) -> None:
        """The server ignores trailing blanks in char(n), and how a UUID is spelled."""
        super().refuse_keys(batch, table)
        kinds = {column.name: column.type for column in table.columns if column.name in table.key and not column.array}
        refuse_other_uuids(batch, [name for name, kind in kinds.items() if kind == "uuid"])
        refuse_blanks(batch, [name for name, kind in kinds.items() if kind == "bpchar"])

    def comparable(self, table: Table, item: pa.Field, value: str) -> str | None:
        """Text as bytes, whatever collation and encoding are; other types that hold text have another order."""
        column = column_of(table, item.name)
        if not is_text(as_column_type(item.type)) or column is None:
            return value
        return f"convert_to({value}, 'UTF8')" if column.type in {"text", "varchar"} else None

    def why_it_forgets(self, table: str) -> str | None:
        [settings] = self.run("SELECT current_setting('fsync'), current_setting('full_page_writes')")
        for name, value in zip(("fsync", "full_page_writes"), settings, strict=True):
            if value != "on":
                return f"{name} is {value}"
        unlogged = "SELECT FROM pg_class c WHERE c.relpersistence = 'u' AND (c.oid = t OR c.oid IN"
        unlogged += " (SELECT relid FROM pg_partition_tree(t)))"
        if self.run(f"SELECT EXISTS ({unlogged}) FROM to_regclass(%s) AS t", (self.named(table),)) == [(True,)]:
            return "the table, or a partition of it, is UNLOGGED"
        return None

    def try_out(self, table: Table, schema: pa.Schema, *, removes: bool) -> None:
        """EXPLAIN checks privileges and writes nothing. It accepts deferrable indexes, which ON CONFLICT does not."""
        if table.key and self.run(_UNIQUE, (self.named(table.name), sorted(table.key))) != [(True,)]:
            raise KeyNotUnique
        nothing = f"VALUES ({', '.join(['NULL'] * len(schema.names))})"
        self.run("EXPLAIN " + self.insert_statement(table, schema.names, nothing))
        if removes:
            self.run(f"EXPLAIN DELETE FROM {self.named(table.name)}")
        if table.key:
            self._make_stage(table, schema.names)

    def insert(self, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """COPY into the table; with a key, into a temporary one first."""
        if not table.key:
            self._copy(self.named(table.name), table.columns, schema, batches, numbered=False)
            return
        stage = self._make_stage(table, schema.names)
        self._copy(stage, table.columns, schema, batches, numbered=True)
        self._insert_from(stage, table, schema.names)

    def delete(self, table: Table, keys: pa.RecordBatch) -> None:
        """COPY the keys into a temporary table of their own."""
        stage = self._make_stage(table, keys.schema.names)
        self._copy(stage, table.columns, keys.schema, [keys], numbered=True)
        statement = f"DELETE FROM {self.named(table.name)} USING {stage} WHERE {self.matching(table, stage)}"
        self.run(statement)

    def _make_stage(self, table: Table, names: Sequence[str]) -> str:
        """An empty one: this transaction may have inserted rows from it already."""
        place = self.named(table.name)
        stage = quoted(f"fencepost_{zlib.crc32(repr((table.sink, place, names)).encode()):08x}")
        self.run(f"{bulk.temporary_statement(stage, place, names)}; DELETE FROM {stage}")
        return stage

    def _copy(
        self,
        place: str,
        there: list[Column],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        numbered: bool,
    ) -> None:
        names = [*schema.names, PLACE] if numbered else schema.names
        with self._copying(bulk.copy_statement(place, names), schema.names) as copy:
            for text in bulk.texts(batches, there, numbered=numbered):
                self._drain()
                copy.write(text)

    @contextmanager
    def _copying(self, statement: str, names: Sequence[str]) -> Iterator[psycopg.Copy]:
        with explained(names), self._now.cursor() as cursor, cursor.copy(statement) as copy:
            yield copy

    def _drain(self) -> None:
        """Wait until the server has taken what was written: the client would keep all that a slow one has not."""
        client = self._now.pgconn
        ready = select.poll()
        ready.register(client.socket, select.POLLIN | select.POLLOUT)
        while client.flush():
            if any(event & select.POLLIN for _, event in ready.poll()):
                client.consume_input()

    def _insert_from(self, stage: str, table: Table, names: Sequence[str]) -> None:
        everything = self.insert_statement(table, names, bulk.select_all(stage, names))
        if not table.key:
            self.run(everything)
            return
        # In most epochs, and always in update mode, each key appears once; selecting the last ones takes twice as long.
        release = "RELEASE fencepost_rows"
        try:
            self.run(f"SAVEPOINT fencepost_rows; {everything}; {release}")
        except KeyTwice:
            last = self.insert_statement(table, names, bulk.select_last(stage, names, table.key))
            self.run(f"ROLLBACK TO fencepost_rows; {last}; {release}")

    # Tables that tasks fill.

    def try_staging(self, table: Table, names: Sequence[str]) -> None:
        stage = self._beside(f"fencepost_try_{uuid.uuid4().hex[:12]}")
        self.run("SAVEPOINT fencepost_try")
        try:
            self.run(bulk.stage_statement(stage, self.named(table.name), names))
        finally:
            self.run("ROLLBACK TO fencepost_try")

    def fill(self, staged: str, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """One transaction, so a table that was not filled completely never existed."""
        stage = self._beside(staged)
        self.run(bulk.stage_statement(stage, self.named(table.name), schema.names))
        self._copy(stage, table.columns, schema, batches, numbered=True)
        self.end()

    def move(self, staged: str, table: Table, names: Sequence[str]) -> None:
        stage = self._beside(staged)
        if not self.has(stage):
            raise RowsRefused(f"the staged table {stage} no longer exists")
        self._insert_from(stage, table, names)

    def staged_tables(self) -> list[str]:
        """Tables in our schema whose names begin like those of staged tables."""
        schema = "current_schema()" if self._schema is None else "%s"
        found = self.run(
            f"SELECT tablename FROM pg_tables WHERE schemaname = {schema} AND starts_with(tablename, 'fencepost_')",
            () if self._schema is None else (self._schema,),
        )
        return [name for (name,) in found]

    def drop_tables(self, tables: Sequence[str]) -> None:
        """Do not wait for locks: a dump may hold one for hours. Missing tables are skipped."""
        self.run("SET LOCAL lock_timeout = '10ms'")
        for table in tables:
            self.run("SAVEPOINT fencepost_drop")
            try:
                self.run(f"DROP TABLE IF EXISTS {self._beside(table)}")
            except Silent as error:
                self.run("ROLLBACK TO fencepost_drop")
                log.warning("staged table %s cannot be dropped yet: %s", table, error)


def connect(dsn: str, name: str) -> psycopg.Connection[Any]:
    """A connection whose commits are durable when they return, and whose name tells who owns it."""
    ours = {"application_name": name, "client_encoding": "UTF8"}
    settings: dict[str, Any] = dict(ours)
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
        settings |= {key: value for key, value in SETTINGS.items() if key not in given}
        connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=ONLY_IF_TOLD, **settings)
    except psycopg.Error as error:
        raise _unconnected(error, lambda: sqlstate.states(psycopg.conninfo.make_conninfo(dsn, **settings))) from None
    chosen = SESSION | {"idle_in_transaction_session_timeout": IDLE, OURS: str(connection.info.backend_pid)}
    changes = [f"set_config('{key}', '{value}', false)" for key, value in chosen.items()]
    try:
        with explained():
            connection.execute(
                f"SELECT {', '.join(changes)}, set_config('synchronous_commit', CASE"
                " WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'"
                " ELSE current_setting('synchronous_commit') END, false)"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def session_name(lineage: str, writer: object) -> str:
    """The name by which a driver that takes over finds a session."""
    return f"fencepost/{lineage}/{writer}"


def _unconnected(error: psycopg.Error, states: Callable[[], set[str]]) -> Silent:
    """Why we could not connect: `Denied` for what a person has to change, `Silent` for what may pass by itself.

    The client has only a text for it, which must not be passed on, as it quotes the dsn. Where the words are not known,
    because the server does not speak English, `states` asks once more, for the codes.
    """
    text = str(error)
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    healing = next((meaning for words, meaning in _HEALING if words in text), None)
    if healing is None or needs_password:  # with several hosts, one that may come back is worth waiting for
        denied = "it requires a password, and the dsn has none" if needs_password else None
        denied = denied or next((meaning for words, meaning in _DENIED if words in text), None)
        if denied is not None:
            return Denied(denied)
    return Silent(healing) if healing else _by_code(states())


def _by_code(states: set[str]) -> Silent:
    """The same, by SQLSTATE; of several hosts, one that may come back is worth waiting for."""
    known = {state: _DENIED_CODES.get(state) or _DENIED_CODES.get(state[:2]) for state in states}
    if known and all(known.values()):
        return Denied(next(meaning for _, meaning in sorted(known.items()) if meaning))
    waiting = (_SILENT.get(state) or _SILENT.get(state[:2]) for state in sorted(states) if not known[state])
    return Silent(next(filter(None, waiting), "it cannot be reached, or refused the connection"))


_LOGIN, _TLS, _OPTIONS = (
    "it refused the login",
    "TLS cannot be set up the way the dsn asks for",
    "it refused an option in the dsn",
)
_DENIED = (
    ("authentication failed", _LOGIN),
    ("no password supplied", _LOGIN),
    ("is not permitted to log in", "this role may not log in"),
    ("permission denied for database", "this role may not connect to the database"),
    ("no pg_hba.conf entry", "its pg_hba.conf does not allow this connection"),
    ("pg_hba.conf rejects", "its pg_hba.conf does not allow this connection"),
    ("is not currently accepting connections", "the database does not accept connections"),
    ("does not exist", "the database or the role does not exist"),
    ("does not support SSL", _TLS),
    ("certificate", _TLS),
    ("SSL error", _TLS),
    ("unrecognized configuration parameter", _OPTIONS),
    ("invalid value for parameter", _OPTIONS),
    ("permission denied to set parameter", _OPTIONS),
)
_DENIED_CODES = {
    "28": _LOGIN,
    "3D000": "the database does not exist",
    "42501": "this role may not connect to the database, or set an option in the dsn",
    "55000": "the database does not accept connections",
    "42704": _OPTIONS,
    "22023": _OPTIONS,
}
_HEALING = (
    ("Connection refused", "it cannot be reached: nothing is listening at this address"),
    ("database system is starting up", "it is starting up"),
    ("database system is shutting down", "it is shutting down"),
    ("database system is in recovery", "it is in recovery"),
    ("database system is not", "it does not accept connections yet"),
    ("too many connections", "it has too many connections"),
    ("too many clients", "it has too many connections"),
    ("connection slots", "it has too many connections"),
    ("unexpected eof", "the connection was lost"),
    ("timeout expired", "it did not answer in time"),
    ("failed to resolve host", "its host name cannot be resolved"),
)


class KeyTwice(RowsRefused):
    """One statement would write two rows with the same key."""


@contextmanager
def explained(columns: Sequence[str] = ()) -> Iterator[None]:
    """Turn psycopg's errors into ours; if one is about one of these columns, name it."""
    try:
        yield
    except psycopg.Error as error:
        raise _explained(error, columns) from None


def _explained(error: psycopg.Error, columns: Sequence[str]) -> Exception:
    state = error.sqlstate or ""
    if state in {"40001", "40P01"}:
        return Conflict(words(error))
    if state == "57014":
        return Late(_SILENT[state])
    if not state or state[:2] in {"08", "25", "53", "57", "58", "XX"} or state == "55P03":
        return Silent(_SILENT.get(state) or _SILENT.get(state[:2]) or f"it failed ({words(error)})")
    if state == "21000":
        return KeyTwice("the same key appears twice")
    details = [
        f"{what} {quoted(name)}"
        for what, name in (
            ("table", error.diag.table_name),
            ("column", error.diag.column_name or _column_of_copy(error, columns)),
            ("constraint", error.diag.constraint_name),
        )
        if name
    ]
    of_the_row = state[:2] == "22" or state in {"23502", "23514", "54000"}  # NOT NULL, CHECK, too long for an index
    kind = NotAllowed if state == "42501" else BadValue if of_the_row else RowsRefused
    return kind(", ".join([words(error), *details]))


def words(error: psycopg.Error) -> str:
    """PostgreSQL's own name for the condition: NumericValueOutOfRange → numeric value out of range."""
    if not error.sqlstate:
        return "the connection was lost or could not be made"
    if error.sqlstate in _REFUSED:
        return _REFUSED[error.sqlstate]
    try:
        name = errors.lookup(error.sqlstate).__name__
    except KeyError:
        return f"SQLSTATE {error.sqlstate}"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _column_of_copy(error: psycopg.Error, columns: Sequence[str]) -> str | None:
    """The column in the context of a failed COPY. The text may also contain a row, so only a known name is accepted."""
    found = re.search(r"^COPY .*?, line \d+, column (.+?): ", error.diag.context or "", re.MULTILINE)
    return found[1] if found and found[1] in columns else None


_REFUSED = {
    "42501": "this user lacks a privilege",
    "42P01": "it no longer exists, or another table that it needs does not",
    "P0001": "a trigger or a function raised an error",
}
READ_ONLY = "it is read-only (a standby?)"
_SILENT = {
    "": "the connection was lost or could not be made",
    "08": "the connection was lost",
    "25006": READ_ONLY,
    "25P03": "the transaction was idle too long, and the server ended the session",
    "53100": "its disk is full",
    "53300": "it has too many connections",
    "53": "it is out of resources",
    "55P03": "another session holds a lock that we need",
    "57014": "the statement took longer than statement_timeout, or was cancelled",
    "57": "it is shutting down or starting up",
    "58": "its disk failed",
    "XX": "it reports an internal error or corrupted data",
}


_COLUMNS = """
SELECT c.relkind, EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '3'),
       a.attname, coalesce(e.typname, b.typname, t.typname), format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END, e.oid IS NOT NULL,
       coalesce(e.typtype, b.typtype, t.typtype) = 'e',
       (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND t.typdefault IS NULL AND a.attidentity = '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
     LEFT JOIN pg_type b ON t.typtype = 'd' AND b.oid = t.typbasetype
     LEFT JOIN pg_type e ON e.oid = coalesce(b.typelem, t.typelem) AND coalesce(b.typcategory, t.typcategory) = 'A'
WHERE c.oid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
"""A domain counts as its base type."""
_UNIQUE = """
SELECT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL AND %s::text[] = ARRAY(
        SELECT a.attname::text COLLATE "C" FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY 1
    )
)
"""
_RESOLVED = """
SELECT pg_postmaster_start_time()::text, current_database()::text,
       coalesce(n.nspname::text, %s, current_schema()::text), coalesce(c.relname::text, %s)
FROM (SELECT to_regclass(%s) AS oid) AS t LEFT JOIN pg_class c ON c.oid = t.oid
     LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
"""
_COLLATIONS = """
SELECT DISTINCT a.attname::text, o.collname::text
FROM pg_attribute a JOIN pg_collation o ON NOT o.collisdeterministic AND (o.oid = a.attcollation OR EXISTS (
    SELECT FROM pg_index i, unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (number, rule)
    WHERE i.indrelid = a.attrelid AND i.indisunique AND k.number = a.attnum AND k.rule = o.oid
))
WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY (%s) ORDER BY 1
"""
"""Of a column, or of a unique index on it."""
_FIELDS = ("name", "type", "shown", "modifier", "array", "enum", "required", "generated")
