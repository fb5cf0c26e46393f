"""One SQLite file: its connection, its write lock, the epoch row in it, and what its errors mean.

Never lets an error of `sqlite3` out: a trigger may put a row's value into its text.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fencepost.sinks.database import Database, RowsRefused, Silent
from fencepost.sinks.marks import Mark, Seen
from fencepost.sinks.sqlite_columns import Column, affinity_of

PATIENT = "PRAGMA busy_timeout = 5000"
"""How long a vote waits for the write lock: nothing is decided yet, and only the restart strategy would try again."""
IMPATIENT = "PRAGMA busy_timeout = 200"
"""How long a commit waits: the protocol itself asks again, with back-off."""


class Locked(Silent):
    """Somebody else holds the write lock."""


class File(Database):
    """One connection to one file, shared by the sinks of a job that lie in it: the file has only one write lock."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._identity: str | None = None

    def look(self) -> None:
        """Open a transaction that locks nothing until it writes."""
        self._open_transaction("BEGIN", PATIENT)

    def begin(self, *, patient: bool) -> None:
        """Take the write lock: a read that later wants to write could be refused half-way."""
        self._open_transaction("BEGIN IMMEDIATE", PATIENT if patient else IMPATIENT)

    def _open_transaction(self, begin: str, patience: str) -> None:
        try:
            connection = self._connect()
            connection.execute(patience)
            connection.execute(begin)
        except (sqlite3.Error, OSError) as error:
            self.drop()
            raise _silent(error) from None
        except Silent:
            self.drop()
            raise

    def end(self) -> None:
        """COMMIT; nothing in SQLite is checked only here, so an error is the disk's."""
        try:
            self._now.execute("COMMIT")
        except sqlite3.Error as error:
            raise _silent(error) from None

    def undo(self) -> None:
        """ROLLBACK; if even that fails, closing the connection does it."""
        if self._connection is None:
            return
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.drop()

    def drop(self) -> None:
        """Close; an open transaction is rolled back by that."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def forget(self) -> None:
        """The next start may find another file, or make it."""
        self._identity = None

    def mark(self, job: str, sink: str) -> Mark | None:
        """Read the epoch row."""
        rows = self.run(
            "SELECT lineage, generation, epoch, handle, writer FROM fencepost_epoch WHERE job = ? AND sink = ?",
            (job, sink),
        )
        return Mark(*rows[0]) if rows else None

    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row."""
        self.run(
            "INSERT OR REPLACE INTO fencepost_epoch (job, sink, lineage, generation, epoch, handle, writer)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job, sink, mark.lineage, mark.generation, mark.epoch, mark.handle, mark.writer),
        )

    def make_identity(self) -> str:
        """The random id in the file, made at the first start."""
        self.run(
            "CREATE TABLE IF NOT EXISTS fencepost_epoch (job TEXT NOT NULL, sink TEXT NOT NULL, lineage TEXT NOT NULL,"
            " generation INTEGER NOT NULL, epoch INTEGER NOT NULL, handle TEXT NOT NULL, writer INTEGER NOT NULL,"
            " PRIMARY KEY (job, sink))"
        )
        self.run("CREATE TABLE IF NOT EXISTS fencepost_target (id TEXT NOT NULL PRIMARY KEY)")
        if not (rows := self.run("SELECT id FROM fencepost_target")):
            self.run("INSERT INTO fencepost_target (id) VALUES (?)", (uuid.uuid4().hex,))
            rows = self.run("SELECT id FROM fencepost_target")
        self._identity = str(rows[0][0])
        return self._identity

    def peek(self, job: str, sink: str, table: str) -> Seen:
        """With a file that nobody has open, SQLite would make two beside it, and they might not be ours to make."""
        while True:
            unused = _is_unused(self._path)
            apart = File(str(self._path))
            try:
                apart._read_only(unused=unused)
                apart.run("BEGIN")
                seen = apart._seen(job, sink, table)
            except sqlite3.Error as error:
                raise _silent(error) from None
            finally:
                apart.drop()
            if not unused or _is_unused(self._path):  # else somebody began to write while we looked
                return seen

    def only_read(self) -> None:
        """For a look at the file as it is: until `drop`, the connection cannot write."""
        self.drop()
        try:
            self._read_only(unused=_is_unused(self._path))
            self._inode = _inode(self._path)
        except (sqlite3.Error, OSError) as error:
            raise _silent(error) from None

    def _read_only(self, *, unused: bool) -> None:
        place = f"file:{quote(str(self._path))}?mode=ro" + ("&immutable=1" if unused else "")
        self._connection = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False)
        self.run(PATIENT)

    def _seen(self, job: str, sink: str, table: str) -> Seen:
        there = {name for (name,) in self.run("SELECT name FROM sqlite_master")}
        ids = self.run("SELECT id FROM fencepost_target") if "fencepost_target" in there else []
        mark = self.mark(job, sink) if "fencepost_epoch" in there else None
        return Seen(str(ids[0][0]) if len(ids) == 1 else "", mark, bool(self.columns(table)))

    def columns(self, table: str) -> list[Column]:
        """The columns of a table or view; none if it is not there."""
        found = self.run(
            'SELECT name, type, "notnull", dflt_value IS NOT NULL, pk, hidden FROM pragma_table_xinfo(?)', (table,)
        )
        keys = sum(1 for row in found if row[4])
        return [
            Column(
                name=name,
                affinity=affinity_of(kind),
                # INTEGER PRIMARY KEY is the row id: SQLite fills it in by itself.
                required=bool(notnull and not default and not (pk and keys == 1 and kind.upper() == "INTEGER")),
                generated=hidden in {2, 3},
            )
            for name, kind, notnull, default, pk, hidden in found
        ]

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """One statement."""
        try:
            return self._now.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _explained(error) from None

    def run_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """One statement for many rows."""
        try:
            self._now.executemany(statement, rows)
        except sqlite3.Error as error:
            raise _explained(error) from None
        except (OverflowError, UnicodeEncodeError) as error:
            raise RowsRefused(f"a value does not fit SQLite's types ({type(error).__name__})") from None

    @property
    def _now(self) -> sqlite3.Connection:
        assert self._connection is not None, "begin() comes first"
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode != _inode(self._path):
            self.drop()  # the file was moved or deleted: what we would write now, nobody would ever see
        if self._connection is None:
            # Only the first connection may make the file. An empty one in the place of a lost one is a loss unnoticed.
            mode = "rwc" if self._identity is None else "rw"
            self._connection = sqlite3.connect(
                f"file:{quote(str(self._path))}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # calls come from one thread at a time, but not always from the same one
            )
            self._connection.execute(PATIENT)
            self._make_durable()
            self._inode = _inode(self._path)
            self._check_identity()
        return self._connection

    def _check_identity(self) -> None:
        if self._identity is None:
            return
        try:
            found = self.run("SELECT id FROM fencepost_target")
        except RowsRefused:
            found = []
        if found != [(self._identity,)]:
            raise Silent("another database lies in its place since the job started")

    def _make_durable(self) -> None:
        """A commit that returned must survive a power cut: the ledger will say "done" and delete the staged rows.

        In WAL mode SQLite's usual choice, synchronous=NORMAL, syncs only at checkpoints and may lose the last commits;
        FULL syncs at every one. WAL itself is for readers: they never block the writer, nor it them. Where the file
        cannot change to WAL (some file systems, or somebody reads it right now), EXTRA is the durable choice.
        """
        connection = self._now
        connection.execute("PRAGMA foreign_keys = OFF")  # a deferred one would be checked at COMMIT, after the decision
        try:
            journal = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not _is_locked(error):
                raise
            journal = "locked"
        connection.execute("PRAGMA synchronous = FULL" if journal == "wal" else "PRAGMA synchronous = EXTRA")

    def __del__(self) -> None:
        """Close quietly when the last session was forgotten instead of closed."""
        self.drop()


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _is_unused(path: Path) -> bool:
    """In WAL mode, by its header, and no log beside it: nobody has it open."""
    try:
        with open(path, "rb") as file:
            header = file.read(20)
    except OSError as error:
        raise Silent(f"it cannot be opened ({error.strerror})") from None
    return header[18:20] == b"\2\2" and not Path(f"{path}-wal").exists()


_HARMLESS = re.compile(
    r"(UNIQUE|NOT NULL|CHECK) constraint failed: |cannot store \w+ value in \w+ column |no such (table|column): "
    r"|table .* has no column |ON CONFLICT clause |cannot (modify|UPSERT|INSERT) |duplicate column name: "
    r"|table .* may not be modified"
)
"""Texts of SQLite that name only what stands in the schema. Any other one may be a trigger's, with a value in it."""


def _is_locked(error: Exception) -> bool:
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _silent(error: Exception) -> Silent:
    if _is_locked(error):
        return Locked("another connection holds the database's write lock")
    return Silent(f"{_SILENT.get(_code(error), 'it failed')} ({_name(error)})")


def _explained(error: sqlite3.Error) -> Exception:
    if _is_locked(error) or _code(error) in _SILENT:
        return _silent(error)
    return RowsRefused(str(error) if _HARMLESS.match(str(error)) else f"a constraint or trigger ({_name(error)})")


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", type(error).__name__))


_SILENT = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_READONLY: "it may not be written",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_PERM: "access was denied",
    sqlite3.SQLITE_AUTH: "access was denied",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_PROTOCOL: "its lock protocol failed",
    sqlite3.SQLITE_INTERRUPT: "it was interrupted",
}
