"""One connection to a PostgreSQL server: its transaction, the epoch row, and what its errors mean.

Never lets an error of psycopg out: the server puts values into its texts. Never believes that COMMIT happened because
nothing was raised: in a failed transaction the server answers it with ROLLBACK.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors

from fencepost.sinks.contract import Owner
from fencepost.sinks.marks import Mark
from fencepost.sinks.postgres.names import TableName, quoted
from fencepost.sinks.sql import EPOCH_TABLE, TARGET_TABLE, Conflict, Database, RowsRefused, Silent

PATIENT = "15s"
"""How long a vote waits for a lock: nothing is decided yet, and only the restart strategy would try again."""
IMPATIENT = "500ms"
"""How long a commit waits: the protocol itself asks again, with back-off."""
IDLE = "60s"
"""How long the server lets a transaction lie open. It is open between vote and decision, which takes milliseconds; a
driver that sleeps there must not hold its locks for ever."""

SETTINGS = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
}
"""Unless the user's dsn says otherwise. libpq itself uses TLS where the server offers it (sslmode=prefer)."""


class KeyTwice(RowsRefused):
    """One statement would write two rows of one key."""


class Server(Database):
    """One connection, shared by the sinks of a job that lie in the same database and schema."""

    def __init__(self, dsn: str, schema: str, name: str = "fencepost") -> None:
        super().__init__()
        self._dsn = dsn
        self._schema = schema or None
        self._connection: psycopg.Connection[Any] | None = None
        self._identity: str | None = None
        self._name = name
        self._locks = False
        self.epochs = str(TableName(self._schema, EPOCH_TABLE))
        self._target = str(TableName(self._schema, TARGET_TABLE))

    def look(self) -> None:
        """A transaction that locks nothing."""
        self._open_transaction(PATIENT, locks=False)

    def begin(self, *, patient: bool) -> None:
        """A transaction in which reading the epoch row locks it."""
        self._open_transaction(PATIENT if patient else IMPATIENT, locks=True)

    def _open_transaction(self, patience: str, *, locks: bool) -> None:
        try:
            with explained():
                self._connect().execute(
                    f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '{patience}'"
                )
        except (Silent, RowsRefused) as error:
            self.drop()
            raise Silent(str(error)) from None
        self._locks = locks

    def check_all(self) -> None:
        """Deferred constraints."""
        self.run("SET CONSTRAINTS ALL IMMEDIATE")

    def end(self) -> None:
        """COMMIT, and see that the server said so."""
        try:
            answer = self._now.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise Silent(f"COMMIT failed ({_words(error)})") from None
        if answer != "COMMIT":
            raise Silent("the transaction had failed before its COMMIT")

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

    def forget(self) -> None:
        """The next start may find another server."""
        self._identity = None

    def take_over(self, owner: Owner) -> None:
        """End the sessions of older writers of this lineage; a role may end its own."""
        self._name = session_name(owner.lineage, owner.writer)
        self.run("SELECT set_config('application_name', %s, false)", (self._name,))
        prefix = session_name(owner.lineage, "")
        older = [
            pid
            for pid, name in self.run(
                "SELECT pid, application_name FROM pg_stat_activity"
                " WHERE usename = current_user AND starts_with(application_name, %s)",
                (prefix,),
            )
            if int(name[len(prefix) :].partition("/")[0] or 0) < owner.writer
        ]
        if older:
            self.run("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) AS pid", (older,))

    def mark(self, job: str, sink: str) -> Mark | None:
        """Read the epoch row, and lock it if we are going to write."""
        rows = self.run(
            f"SELECT lineage, generation, epoch, handle, writer FROM {self.epochs} WHERE job = %s AND sink = %s"
            + (" FOR UPDATE" if self._locks else ""),
            (job, sink),
        )
        return Mark(*rows[0]) if rows else None

    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row, never back.

        A row that is not there cannot be locked: of two drivers that both saw none, the second one finds out here.
        """
        values = (job, sink, mark.lineage, mark.generation, mark.epoch, mark.handle, mark.writer)
        written = self.run(
            f"INSERT INTO {self.epochs} AS old (job, sink, lineage, generation, epoch, handle, writer)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (job, sink) DO UPDATE SET lineage = excluded.lineage,"
            " generation = excluded.generation, epoch = excluded.epoch, handle = excluded.handle,"
            " writer = excluded.writer WHERE (old.generation, old.epoch) <= (excluded.generation, excluded.epoch)"
            " RETURNING 1",
            values,
        )
        if not written:
            raise Silent("another driver wrote a newer epoch meanwhile")

    def make_identity(self) -> str:
        """The random id in the database, made at the first start."""
        if not self.exists(self._target) or not self.exists(self.epochs):
            self.run("SELECT pg_advisory_xact_lock(7038625401)")  # of two first starts, one makes the tables
            # Looked up before: CREATE … IF NOT EXISTS wants the right to create, which a role may not have.
            if not self.exists(self.epochs):
                self.run(
                    f"CREATE TABLE {self.epochs} (job text, sink text, lineage text NOT NULL, generation bigint"
                    " NOT NULL, epoch bigint NOT NULL, handle text NOT NULL, writer bigint NOT NULL,"
                    " PRIMARY KEY (job, sink))"
                )
            if not self.exists(self._target):
                self.run(f"CREATE TABLE {self._target} (id text PRIMARY KEY)")
                self.run(f"INSERT INTO {self._target} VALUES (%s)", (uuid.uuid4().hex,))
        self._identity = self._read_identity()
        if self._identity is None:
            raise RowsRefused(f"{TARGET_TABLE} has no row, or several: it was changed by hand")
        return self._identity

    def exists(self, table: str) -> bool:
        """Is there such a table, where we would find it?"""
        return self.run("SELECT to_regclass(%s) IS NOT NULL", (table,)) == [(True,)]

    def staged_tables(self) -> list[str]:
        """Tables in our schema whose names begin as those of staged rows do."""
        schema = "current_schema()" if self._schema is None else "%s"
        found = self.run(
            f"SELECT tablename FROM pg_tables WHERE schemaname = {schema} AND starts_with(tablename, 'fencepost_')",
            None if self._schema is None else (self._schema,),
        )
        return [name for (name,) in found]

    def drop_tables(self, tables: Sequence[str]) -> None:
        """Not there already is fine."""
        self.run(f"DROP TABLE IF EXISTS {', '.join(tables)}")

    def run(self, statement: str, values: Sequence[Any] | None = None) -> list[Any]:
        """One statement."""
        with explained():
            found = self._now.execute(statement, values)
            return found.fetchall() if found.description else []

    @contextmanager
    def copy(self, statement: str) -> Iterator[psycopg.Copy]:
        """Rows into a table, in bulk."""
        with explained(), self._now.cursor() as cursor, cursor.copy(statement) as copy:
            yield copy

    @property
    def _now(self) -> psycopg.Connection[Any]:
        assert self._connection is not None, "begin() comes first"
        return self._connection

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is not None and self._connection.closed:
            self._connection = None
        if self._connection is None:
            self._connection = connect(self._dsn, self._name)
            if self._identity is not None and self._read_identity() != self._identity:
                raise Silent("another database answers in its place since the job started")
        return self._connection

    def _read_identity(self) -> str | None:
        try:
            found = self.run(f"SELECT id FROM {self._target}")
        except RowsRefused:
            return None
        return found[0][0] if len(found) == 1 else None

    def __del__(self) -> None:
        """Close quietly when the last session was forgotten instead of closed."""
        self.drop()


def connect(dsn: str, name: str) -> psycopg.Connection[Any]:
    """A connection whose commits are durable when they return, and whose name says whose it is."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    settings = {key: value for key, value in SETTINGS.items() if key not in given}
    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **{**settings, "application_name": name})  # type: ignore[arg-type]
    connection.execute(
        "SELECT set_config('client_min_messages', 'warning', false), set_config('TimeZone', 'UTC', false),"
        f" set_config('idle_in_transaction_session_timeout', '{IDLE}', false),"
        " set_config('DateStyle', 'ISO', false), set_config('synchronous_commit', CASE"
        " WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'"
        " ELSE current_setting('synchronous_commit') END, false)"
    )
    return connection


def session_name(lineage: str, writer: object) -> str:
    """How a session is found by the driver that takes over."""
    return f"fencepost/{lineage}/{writer}"


@contextmanager
def explained() -> Iterator[None]:
    """Turn psycopg's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise _explained(error) from None


def _explained(error: psycopg.Error) -> Exception:
    state = error.sqlstate or ""
    if state in {"40001", "40P01"}:
        return Conflict(_words(error))
    if not state or state[:2] in {"08", "28", "53", "57", "58", "XX", "25"} or state in {"55P03", "3D000"}:
        return Silent(_SILENT.get(state) or _SILENT.get(state[:2]) or f"it failed ({_words(error)})")
    if state == "21000":
        return KeyTwice("the same key twice")
    details = [
        f"{what} {quoted(name)}"
        for what, name in (
            ("table", error.diag.table_name),
            ("column", error.diag.column_name or _column_of_copy(error)),
            ("constraint", error.diag.constraint_name),
        )
        if name
    ]
    return RowsRefused(", ".join([_words(error), *details]))


def _words(error: psycopg.Error) -> str:
    """PostgreSQL's own name of the condition, in words: NumericValueOutOfRange → numeric value out of range."""
    if not error.sqlstate:
        return "the connection was lost or could not be made"
    try:
        name = errors.lookup(error.sqlstate).__name__
    except KeyError:
        return f"SQLSTATE {error.sqlstate}"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _column_of_copy(error: psycopg.Error) -> str | None:
    """The column in the context of a failed COPY, without the value behind it."""
    found = re.match(r"COPY .*?, line \d+, column ([^:]+)", error.diag.context or "")
    return found[1] if found else None


_SILENT = {
    "": "the connection was lost or could not be made",
    "08": "the connection was lost",
    "28": "it refused the login",
    "25006": "it is read-only (a standby?)",
    "25P03": "the transaction lay open too long, and it ended the session",
    "3D000": "there is no such database",
    "53100": "its disk is full",
    "53300": "it has too many connections",
    "53": "it is out of resources",
    "55P03": "another session holds a lock that we need",
    "57014": "the statement took longer than statement_timeout, or was cancelled",
    "57": "it is shutting down or starting up",
    "58": "its disk failed",
    "XX": "it reports damage",
}
