"""One connection to a PostgreSQL server: its transaction, the epoch row, and the tables beside it.

Never believes that COMMIT happened because nothing was raised: in a failed transaction the server answers it with
ROLLBACK.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from fencepost.sinks.contract import Owner
from fencepost.sinks.database import EPOCH_TABLE, TARGET_TABLE, Database, RowsRefused, Silent
from fencepost.sinks.marks import Mark, Seen
from fencepost.sinks.postgres.names import TableName, read_name
from fencepost.sinks.postgres.trouble import READ_ONLY, explained, words

log = logging.getLogger(__name__)

OLDEST = 14
"""The first version whose pg_terminate_backend waits for the end of the session."""
PATIENT = "15s"
"""How long a vote waits for a lock: nothing is decided yet, and only the restart strategy would try again."""
IMPATIENT = "500ms"
"""How long a commit waits: the protocol itself asks again, with back-off."""
IDLE = "60s"
"""How long the server lets a transaction lie open. It is open between vote and decision, which takes milliseconds; a
driver that sleeps there must not hold its locks for ever."""

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
}
"""Whatever was set for the role or the database: how our rows are read must not depend on it."""


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
        begin = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '{patience}'"
        for may_be_stale in (self._connection is not None, False):
            try:
                self._connect()
                self.run(begin)
            except (Silent, RowsRefused) as error:
                self.drop()
                if not may_be_stale:  # else the server was started again since, which is no reason to fail an epoch
                    # A standby does not know READ WRITE.
                    raise (error if isinstance(error, Silent) else Silent(READ_ONLY)) from None
            else:
                break
        self._locks = locks

    def check_all(self) -> None:
        """Deferred constraints."""
        self.run("SET CONSTRAINTS ALL IMMEDIATE")

    def end(self) -> None:
        """COMMIT, and see that the server said so."""
        try:
            answer = self._now.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise Silent(f"COMMIT failed ({words(error)})") from None
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
        self.undo()  # a name that is given inside a transaction goes with its ROLLBACK
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
            log.warning("the session %d of an older driver has another role: it is waited for, up to %s", pid, IDLE)

    def mark(self, job: str, sink: str) -> Mark | None:
        """Read the epoch row, and lock it if we are going to write."""
        rows = self.run(
            f"SELECT lineage, generation, epoch, handle, writer FROM {_bound(self.epochs)} WHERE job = %s AND sink = %s"
            + (" FOR UPDATE" if self._locks else ""),
            (job, sink),
        )
        return Mark(*rows[0]) if rows else None

    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row, always forward.

        A row that is not there cannot be locked: of two drivers that both saw none, and may both be about to commit
        the same epoch, the second one finds out here.
        """
        values = (job, sink, mark.lineage, mark.generation, mark.epoch, mark.handle, mark.writer)
        written = self.run(self._set_mark_statement(), values)
        if not written:
            raise Silent("another driver wrote this epoch or a newer one meanwhile")

    def _set_mark_statement(self) -> str:
        return (
            f"INSERT INTO {_bound(self.epochs)} AS old (job, sink, lineage, generation, epoch, handle, writer)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (job, sink) DO UPDATE SET lineage = excluded.lineage,"
            " generation = excluded.generation, epoch = excluded.epoch, handle = excluded.handle,"
            " writer = excluded.writer WHERE (old.generation, old.epoch) < (excluded.generation, excluded.epoch)"
            " RETURNING 1"
        )

    def make_identity(self) -> str:
        """The random id in the database, made at the first start."""
        if (version := self._now.info.server_version // 10_000) < OLDEST:
            raise RowsRefused(f"it is PostgreSQL {version}, and {OLDEST} is the oldest that will do")
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
                self.run(f"INSERT INTO {_bound(self._target)} VALUES (%s)", (uuid.uuid4().hex,))
        try:
            self._identity = self._read_identity()
            self.run("EXPLAIN " + self._set_mark_statement(), ("", "", "", 0, 0, "", 0))  # checks rights and columns
        except RowsRefused as error:
            raise RowsRefused(f"{TARGET_TABLE} or {EPOCH_TABLE} does not work: {error}") from None
        if self._identity is None:
            raise RowsRefused(f"{TARGET_TABLE} has no row, or several: it was changed by hand")
        return self._identity

    def peek(self, job: str, sink: str, table: str) -> Seen:
        """In a transaction that cannot write."""
        apart = Server(self._dsn, self._schema or "")
        try:
            apart._connection = connect(self._dsn, "fencepost verify")
            apart.run(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = '{IMPATIENT}'")
            return Seen(
                (apart._read_identity() if apart.exists(apart._target) else None) or "",
                apart.mark(job, sink) if apart.exists(apart.epochs) else None,
                apart.exists(str(read_name(table))),
            )
        finally:
            apart.drop()

    def why_it_forgets(self, table: str) -> str | None:
        """What is set so that a commit that was acknowledged may be gone after a crash."""
        [settings] = self.run("SELECT current_setting('fsync'), current_setting('full_page_writes')")
        for name, value in zip(("fsync", "full_page_writes"), settings, strict=True):
            if value != "on":
                return f"{name} is {value}"
        unlogged = "SELECT FROM pg_class c WHERE c.relpersistence = 'u' AND (c.oid = t OR c.oid IN"
        unlogged += " (SELECT relid FROM pg_partition_tree(t)))"
        if self.run(f"SELECT EXISTS ({unlogged}) FROM to_regclass(%s) AS t", (table,)) == [(True,)]:
            return "the table, or a partition of it, is UNLOGGED"
        return None

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
        """Each at once or not at all: a dump may hold one for hours. Not there already is fine."""
        self.run("SET LOCAL lock_timeout = '10ms'")
        for table in tables:
            self.run("SAVEPOINT fencepost_drop")
            try:
                self.run(f"DROP TABLE IF EXISTS {table}")
            except Silent as error:
                self.run("ROLLBACK TO fencepost_drop")
                log.warning("the staged table %s stays for now: %s", table, error)

    def run(self, statement: str, values: Sequence[Any] | None = None) -> list[Any]:
        """One statement."""
        with explained():
            found = self._now.execute(statement, values)
            return found.fetchall() if found.description else []

    @contextmanager
    def copy(self, statement: str, names: Sequence[str]) -> Iterator[psycopg.Copy]:
        """Rows into columns of a table, in bulk."""
        with explained(names), self._now.cursor() as cursor, cursor.copy(statement) as copy:
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
            if self._identity is not None and not self._is_the_same():
                raise Silent("another database answers in its place since the job started")
        return self._connection

    def _is_the_same(self) -> bool:
        try:
            return self._read_identity() == self._identity
        except RowsRefused:
            return False

    def _read_identity(self) -> str | None:
        found = self.run(f"SELECT id FROM {self._target}")
        return found[0][0] if len(found) == 1 else None

    def __del__(self) -> None:
        """Close quietly when the last session was forgotten instead of closed."""
        self.drop()


def connect(dsn: str, name: str) -> psycopg.Connection[Any]:
    """A connection whose commits are durable when they return, and whose name says whose it is."""
    ours = {"application_name": name, "client_encoding": "UTF8"}
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
        settings = {key: value for key, value in SETTINGS.items() if key not in given} | ours
        connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **settings)  # type: ignore[arg-type]
    except psycopg.Error:
        # libpq says more, but in the server's language, and it quotes the dsn.
        raise Silent("it cannot be reached, or it refused database, user or password of the dsn") from None
    chosen = SESSION | {"idle_in_transaction_session_timeout": IDLE}
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
    """How a session is found by the driver that takes over."""
    return f"fencepost/{lineage}/{writer}"


def _bound(table: str) -> str:
    """A table in a statement that has values: there a percent sign stands for one."""
    return table.replace("%", "%%")
