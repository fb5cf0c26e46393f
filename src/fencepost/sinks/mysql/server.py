"""One connection to a MySQL or MariaDB server: its transaction, the epoch row, and who holds it.

Never makes or drops a table while a vote is open: the server would commit it. Never believes that COMMIT happened
because nothing was raised: a transaction that had ended before is committed without a word.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pymysql

from fencepost.sinks.contract import Owner
from fencepost.sinks.database import EPOCH_TABLE, TARGET_TABLE, Database, Denied, NotAllowed, RowsRefused, Silent
from fencepost.sinks.marks import Mark, Seen
from fencepost.sinks.mysql.catalogue import engine_of
from fencepost.sinks.mysql.connection import Address, Connection, connect
from fencepost.sinks.mysql.names import listed
from fencepost.sinks.mysql.trouble import explained, meaning

log = logging.getLogger(__name__)

PATIENT = 15
"""Seconds that a vote waits for a lock: nothing is decided yet, and only the restart strategy would try again."""
IMPATIENT = 1
"""Seconds that a commit waits: the protocol itself asks again, with back-off."""
OLDER = 50
"""So many drivers before us are looked for. The server ends sessions that sleep, so there are no older ones."""
_HARMLESS = {1287, 1592}
"""Warnings about the statement, not about its rows: an old word, a replica."""
_SECONDS_TO_END = 5.0


class Server(Database):
    """One connection, shared by the sinks of a job that lie in the same database."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address
        self._connection: Connection | None = None
        self._patience = 0
        self._identity: str | None = None
        self._name: str | None = None
        self._began = False
        self._changed = False
        self._locks = False
        self._marked: set[tuple[str, str]] = set()

    def look(self) -> None:
        """A transaction that locks nothing."""
        self._open_transaction(PATIENT, locks=False)

    def begin(self, *, patient: bool) -> None:
        """A transaction in which reading the epoch row locks it."""
        self._open_transaction(PATIENT if patient else IMPATIENT, locks=True)

    def _open_transaction(self, patience: int, *, locks: bool) -> None:
        for may_be_stale in (self._connection is not None, False):
            try:
                self._connect()
                if self._patience != patience:
                    self.run(f"SET SESSION innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}")
                    self._patience = patience
                self.run("START TRANSACTION READ WRITE")
            except (Silent, RowsRefused) as error:
                self.drop()
                if not may_be_stale:  # else the server ended the session since, which is no reason to fail an epoch
                    if isinstance(error, Silent):
                        raise
                    raise (Denied if isinstance(error, NotAllowed) else Silent)(str(error)) from None
            else:
                break
        self._began, self._changed, self._locks = True, False, locks
        self._marked.clear()

    def end(self) -> None:
        """COMMIT, and see that there was something to commit."""
        if self._changed:  # a table, and that committed
            return
        if self._connection is None or not self._connection.in_transaction:
            raise Silent("the transaction had ended before its COMMIT")
        try:
            self.run("COMMIT")
        except RowsRefused as error:
            raise Silent(f"COMMIT failed ({error})") from None
        self._began = False

    def undo(self) -> None:
        """ROLLBACK; if even that fails, closing the connection does it."""
        if self._connection is None or not self._began:
            return
        try:
            self.run("ROLLBACK")
            self._began = False
        except (Silent, RowsRefused):
            self.drop()

    def drop(self) -> None:
        """Close; the server rolls an open transaction back."""
        connection, self._connection = self._connection, None
        self._began, self._patience = False, 0
        if connection is not None:
            with suppress(pymysql.Error, OSError):
                connection.close()

    def forget(self) -> None:
        """The next start may find another server."""
        self._identity = None

    def literal(self, text: str) -> str:
        """A backslash escapes."""
        return super().literal(text.replace("\\", "\\\\"))

    def take_over(self, owner: Owner) -> None:
        """End the sessions of older writers of this lineage; a user may end its own.

        Each holds a lock that is named after its writer, and the server tells which session holds a lock.
        """
        whose = _digest(owner.job, owner.lineage, self._address.database)
        self._name = f"fencepost/{whose}/{owner.writer}"
        self.run("SELECT RELEASE_ALL_LOCKS()")  # of an older writer in this process
        self._hold_name()
        older = [f"fencepost/{whose}/{writer}" for writer in owner.older[-OLDER:] if writer < owner.writer]
        if not older:
            return
        [found] = self.run(f"SELECT {', '.join(['IS_USED_LOCK(%s)'] * len(older))}", older)
        for name, session in zip(older, found, strict=True):
            if session is not None:
                self._end_session(int(session), name)

    def _end_session(self, session: int, name: str) -> None:
        try:
            self.run(f"KILL {session}")
        except RowsRefused:  # gone by itself, or of another user
            log.warning("the session %d of an older driver could not be ended", session)
            return
        until = time.monotonic() + _SECONDS_TO_END
        while self.run("SELECT IS_USED_LOCK(%s)", (name,)) != [(None,)] and time.monotonic() < until:
            time.sleep(0.02)

    def _hold_name(self) -> None:
        if self._name is not None:
            self.run("SELECT GET_LOCK(%s, 0)", (self._name,))

    def mark(self, job: str, sink: str) -> Mark | None:
        """Read the epoch row, and lock it if we are going to write."""
        rows = self.run(
            f"SELECT lineage, generation, epoch, handle, writer FROM {EPOCH_TABLE} WHERE job = %s AND sink = %s"
            + (" FOR UPDATE" if self._locks else ""),
            (job, sink),
        )
        if not rows:
            return None
        self._marked.add((job, sink))
        return Mark(*rows[0])

    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row, never back.

        A row that is not there cannot be locked: of two drivers that both saw none, the second one finds out here.
        Only a row that `mark` saw, and locked, may be replaced: both may be about to commit the same epoch.
        """
        values = (mark.lineage, mark.generation, mark.epoch, mark.handle, mark.writer, job, sink)
        if (job, sink) in self._marked:
            written = self.write(
                f"UPDATE {EPOCH_TABLE} SET lineage = %s, generation = %s, epoch = %s, handle = %s, writer = %s"
                " WHERE job = %s AND sink = %s AND (generation, epoch) <= (%s, %s)",
                values=(*values, mark.generation, mark.epoch),
            )
            if written != 1:
                raise Silent("another driver wrote a newer epoch meanwhile")
            return
        try:
            self.write(
                f"INSERT INTO {EPOCH_TABLE} (lineage, generation, epoch, handle, writer, job, sink)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)",
                values=values,
            )
        except RowsRefused as error:
            if "duplicate key" not in str(error):
                raise
            raise Silent("another driver wrote an epoch meanwhile") from None

    def make_identity(self) -> str:
        """The random id in the database, made at the first start."""
        if not (self._has(EPOCH_TABLE) and self._has(TARGET_TABLE) and self._ids()):
            lock = f"fencepost/{_digest(self._address.database)}"
            self.run("SELECT GET_LOCK(%s, %s)", (lock, PATIENT))
            try:
                self._make_tables()
            finally:
                with suppress(Silent, RowsRefused):
                    self.run("SELECT RELEASE_LOCK(%s)", (lock,))
        found = self._ids()
        if len(found) != 1:
            raise RowsRefused(f"{TARGET_TABLE} has no row, or several: it was changed by hand")
        [self._identity] = found
        return self._identity

    def peek(self, job: str, sink: str, table: str) -> Seen:
        """In a transaction that cannot write."""
        apart = Server(self._address)
        try:
            apart._connection = connect(self._address)
            apart.run(f"SET SESSION lock_wait_timeout = {IMPATIENT}")
            apart.run("START TRANSACTION READ ONLY")
            ids = apart._ids() if engine_of(apart.run, TARGET_TABLE) else []
            mark = apart.mark(job, sink) if engine_of(apart.run, EPOCH_TABLE) else None
            return Seen(ids[0] if len(ids) == 1 else "", mark, engine_of(apart.run, table) is not None)
        finally:
            apart.drop()

    def _make_tables(self) -> None:
        # Looked up before: CREATE … IF NOT EXISTS wants the right to create, which a user may not have.
        if not self._has(EPOCH_TABLE):
            self.change(epoch_table(self.collation()))
        if not self._has(TARGET_TABLE):
            self.change(target_table(self.collation()))
        if not self._ids():
            self.write(f"INSERT INTO {TARGET_TABLE} (id) VALUES (%s)", values=(uuid.uuid4().hex,))

    def collation(self) -> str:
        """One in which only the same texts are equal: no case, no accent, no blank at the end is passed over."""
        found = self.run(
            "SELECT collation_name FROM information_schema.collations"
            " WHERE collation_name IN ('utf8mb4_0900_bin', 'utf8mb4_nopad_bin') ORDER BY collation_name"
        )
        if not found:
            raise RowsRefused("MySQL 8.0.17 and MariaDB 10.11 are the oldest that will do")
        return str(found[0][0])

    def why_it_forgets(self) -> str | None:
        """What is set so that a commit that was acknowledged may be gone after a crash."""
        [(flush, logs, sync)] = self.run(
            "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog"
        )
        if int(flush) != 1:
            return f"innodb_flush_log_at_trx_commit is {flush}"
        # What is prepared in InnoDB and not in the binary log is rolled back after a crash.
        return f"log_bin is on and sync_binlog is {sync}" if int(logs) and int(sync) != 1 else None

    def staged_tables(self) -> list[str]:
        """Tables in our database whose names begin as those of staged rows do."""
        found = self.run(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND LEFT(table_name, 10) = 'fencepost_'"
        )
        return [str(name) for (name,) in found]

    def drop_tables(self, tables: Sequence[str]) -> None:
        """One by one: one that somebody reads, a dump perhaps, must not keep the others. Not there already is fine."""
        late: Silent | None = None
        for table in tables:
            try:
                self.change(f"DROP TABLE IF EXISTS {listed([table])}")
            except Silent as error:
                late = error
        if late is not None:
            raise late

    def change(self, statement: str) -> None:
        """Make or drop a table, which also commits whatever is open."""
        if self.voting is not None:
            raise Silent("a vote is open, and changing tables would commit it")
        self.run(statement)
        self._began, self._changed = False, True

    def run(self, statement: str, values: Sequence[Any] | None = None) -> list[Any]:
        """One statement."""
        with explained(), self._now.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def write(self, statement: str | bytes, columns: Sequence[str] = (), values: Sequence[Any] | None = None) -> int:
        """A statement that writes rows, of which it must not warn; how many."""
        with explained(columns), self._now.cursor() as cursor:
            count = int(cursor.execute(statement, values))
            warnings = cursor.warning_count
        self._refuse_warnings(warnings, columns)
        return count

    def load(self, statement: str, texts: Iterable[memoryview], columns: Sequence[str]) -> int:
        """LOAD DATA LOCAL of rows that it must not warn of; how many."""
        failed: Exception | None = None

        def until_one_fails() -> Iterator[memoryview]:
            nonlocal failed
            try:
                yield from texts
            except Exception as error:  # noqa: BLE001 - raised below: it is not the server's
                failed = error

        with explained(columns):
            count, warnings = self._now.load(statement, until_one_fails())
        if failed is not None:
            raise failed
        self._refuse_warnings(warnings, columns)
        return count

    def _refuse_warnings(self, count: int, columns: Sequence[str]) -> None:
        found = self.run("SHOW WARNINGS") if count else []
        harmful = [meaning(int(code), text, columns) for _, code, text in found if int(code) not in _HARMLESS]
        if harmful or count > len(found):
            raise RowsRefused(str(harmful[0]) if harmful else f"it gave {count} warnings")

    @property
    def takes_files(self) -> bool:
        """Does the server allow LOAD DATA LOCAL?"""
        return self._now.infile

    @property
    def packet(self) -> int:
        """Bytes that it takes in one statement."""
        return self._now.packet

    def _has(self, table: str) -> bool:
        engine = engine_of(self.run, table)
        if engine not in {None, "InnoDB"}:
            raise RowsRefused(f"{table} is kept by {engine}, which has no transactions: ALTER TABLE … ENGINE=InnoDB")
        return engine is not None

    def _ids(self) -> list[str]:
        return [str(found) for (found,) in self.run(f"SELECT id FROM {TARGET_TABLE}")]

    @property
    def _now(self) -> Connection:
        assert self._connection is not None, "begin() comes first"
        return self._connection

    def _connect(self) -> None:
        if self._connection is not None and not self._connection.open:
            self.drop()
        if self._connection is None:
            self._connection = connect(self._address)
            if self._identity is not None and not self._is_the_same():
                raise Silent("another database answers in its place since the job started")
            self._hold_name()

    def _is_the_same(self) -> bool:
        try:
            return self._ids() == [self._identity]
        except RowsRefused:
            return False

    def __del__(self) -> None:
        """Close quietly when the last session was forgotten instead of closed."""
        self.drop()


def _digest(*parts: str) -> str:
    """Names of locks have at most 64 characters."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def epoch_table(collation: str) -> str:
    """What the target knows of itself."""
    text = f"CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL"
    return (
        f"CREATE TABLE {EPOCH_TABLE} (job varchar(255) {text}, sink varchar(255) {text}, lineage varchar(64) {text},"
        f" generation bigint NOT NULL, epoch bigint NOT NULL, handle longtext {text}, writer bigint NOT NULL,"
        " PRIMARY KEY (job, sink)) ENGINE=InnoDB"
    )


def target_table(collation: str) -> str:
    """Which target it is."""
    text = f"CHARACTER SET utf8mb4 COLLATE {collation}"
    return f"CREATE TABLE {TARGET_TABLE} (id varchar(64) {text} PRIMARY KEY) ENGINE=InnoDB"
