"""MySQL and MariaDB: transaction, catalogue, epoch row, who holds it, and how rows are written.

Never creates or drops a table while a vote is open: the server would commit it. Never assumes that COMMIT happened
because nothing was raised: COMMIT succeeds silently even if the transaction had already ended.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any, NamedTuple

import pyarrow as pa
import pymysql

from fencepost.connectors.mysql import bulk
from fencepost.connectors.mysql.columns import (
    PLAIN_TEXTS,
    Column,
    create_table,
    declared,
    listed,
    misfits,
    quoted,
    refuse_nulls,
    stage_table,
    texts_for,
)
from fencepost.connectors.mysql.connection import Address, Connection, connect, explained, meaning
from fencepost.connectors.table.bulk import lines
from fencepost.connectors.table.database import (
    EPOCH_TABLE,
    MARK_COLUMNS,
    PLACE,
    TARGET_TABLE,
    KeyNotUnique,
    RowsRefused,
    ServerDialect,
    Silent,
    Table,
    TaskTables,
    column_of,
    numbered,
    refuse_other_json,
    refuse_other_uuids,
)
from fencepost.connectors.table.mark import Mark
from fencepost.connectors.table.values import as_column_type, is_text
from fencepost.contract import Owner

log = logging.getLogger(__name__)

PATIENT = 15
"""Seconds that a vote waits for a lock: nothing is decided yet, and a failed vote costs a restart."""
IMPATIENT = 1
"""Seconds that a commit waits for a lock: the protocol itself retries it, with backoff."""
OLDER = 50
"""How many earlier drivers we look for. The server ends idle sessions, so there are no older ones."""
_HARMLESS = {1287, 1592}
"""Warnings about the statement, not its rows: deprecated syntax, unsafe for replication."""
_SECONDS_TO_END = 5.0


class MySQLDialect(ServerDialect, TaskTables):
    """One connection, shared by the sinks of a job in the same database."""

    product = "MySQL"
    exact = "varchar, with a collation that ends in _nopad_bin or _0900_bin"
    lasting = "Set innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 if the binary log is on."
    staging_rights = "CREATE, DROP, INSERT and SELECT on its database"
    changes_commit = True
    _connection: Connection | None = None

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._address = address
        self._patience = 0
        self._name: str | None = None
        self._began = False
        self._changed = False
        self._marked: set[tuple[str, str]] = set()

    @property
    def at(self) -> str:
        """What a defaults file says of it stays there."""
        told = self._address
        if told.unix_socket or (told.host is None and told.defaults_file):
            return f" at {told.unix_socket}" if told.unix_socket else ""
        return f" at {told.host or 'localhost'}:{told.port or 3306}"

    # The transaction.

    def connect(self) -> None:
        if self._connection is not None and not self._connection.open:
            self.drop()
        if self._connection is None:
            self._connection = connect(self._address)
            self.check_identity()
            self._hold_name()

    def start(self, *, patient: bool) -> None:
        """Set how long to wait for a lock, if it differs."""
        patience = PATIENT if patient else IMPATIENT
        if self._patience != patience:
            self.run(f"SET SESSION innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}")
            self._patience = patience
        self.run("START TRANSACTION READ WRITE")
        self._began, self._changed = True, False
        self._marked.clear()

    def only_read(self) -> None:
        self._connection = connect(self._address)
        self.run(f"SET SESSION lock_wait_timeout = {IMPATIENT}")
        self.run("START TRANSACTION READ ONLY")

    def hurry(self, seconds: float) -> None:
        """MySQL and MariaDB have names of their own for it."""
        try:
            self.run(f"SET SESSION max_execution_time = {round(seconds * 1000)}")
        except RowsRefused:
            self.run(f"SET SESSION max_statement_time = {seconds}")

    def end(self) -> None:
        """COMMIT, after checking that the transaction is still open."""
        if self._changed:  # a table was created or dropped, which committed
            return
        if self._connection is None or not self._connection.in_transaction:
            raise Silent("the transaction had already ended before COMMIT")
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

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with explained(), self._now.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def _write(self, statement: str | bytes, columns: Sequence[str] = (), values: Sequence[Any] | None = None) -> int:
        """Run a statement that writes rows and return how many; any warning is an error."""
        with explained(columns), self._now.cursor() as cursor:
            count = int(cursor.execute(statement, values))
            warnings = cursor.warning_count
        self._refuse_warnings(warnings, columns)
        return count

    def _load_data(self, statement: str, texts: Iterable[memoryview], columns: Sequence[str]) -> int:
        """LOAD DATA LOCAL; returns the number of rows, and any warning is an error."""
        failed: Exception | None = None

        def until_one_fails() -> Iterator[memoryview]:
            nonlocal failed
            try:
                yield from texts
            except Exception as error:  # noqa: BLE001 - raised below: it is not the server's
                failed = error

        with explained(columns):
            connection: Connection = self._now
            count, warnings = connection.load(statement, until_one_fails())
        if failed is not None:
            raise failed
        self._refuse_warnings(warnings, columns)
        return count

    def _refuse_warnings(self, count: int, columns: Sequence[str]) -> None:
        found = self.run("SHOW WARNINGS") if count else []
        harmful = [meaning(int(code), text, columns) for _, code, text in found if int(code) not in _HARMLESS]
        if harmful or count > len(found):
            first = harmful[0] if harmful else f"the server gave {count} warnings"
            raise first if isinstance(first, RowsRefused) else RowsRefused(str(first))

    # The epoch row, the target's identity, and who writes to it.

    def literal(self, text: str) -> str:
        """Backslashes are escapes in MySQL."""
        return super().literal(text.replace("\\", "\\\\"))

    def take_over(self, owner: Owner) -> None:
        """End the sessions of older writers of this lineage; a user may kill its own sessions.

        Each session holds a lock named after its writer, and the server tells which session holds a lock.
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
        except RowsRefused:  # it ended by itself, or belongs to another user
            log.warning("session %d of an older driver could not be ended", session)
            return
        until = time.monotonic() + _SECONDS_TO_END
        while self.run("SELECT IS_USED_LOCK(%s)", (name,)) != [(None,)] and time.monotonic() < until:
            time.sleep(0.02)

    def _hold_name(self) -> None:
        if self._name is not None:
            self.run("SELECT GET_LOCK(%s, 0)", (self._name,))

    def mark(self, job: str, sink: str) -> Mark | None:
        """Remember which epoch rows exist, and are locked."""
        found = super().mark(job, sink)
        if found is not None:
            self._marked.add((job, sink))
        return found

    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row, which never moves back.

        A missing row cannot be locked: if two drivers both found none, the second one finds out here. Only a row that
        `mark` saw, and locked, may be replaced: both drivers may be about to commit the same epoch.
        """
        values = (*astuple(mark), job, sink)
        if (job, sink) in self._marked:
            written = self._write(
                f"UPDATE {EPOCH_TABLE} SET {', '.join(f'{name} = %s' for name in MARK_COLUMNS)}"
                " WHERE job = %s AND sink = %s AND (generation, epoch) <= (%s, %s)",
                values=(*values, mark.generation, mark.epoch),
            )
            if written != 1:
                raise Silent("another driver has written a newer epoch in the meantime")
            return
        try:
            self._write(
                f"INSERT INTO {EPOCH_TABLE} ({', '.join(MARK_COLUMNS)}, job, sink)"
                f" VALUES ({'%s, ' * len(MARK_COLUMNS)}%s, %s)",
                values=values,
            )
        except RowsRefused as error:
            if "duplicate key" not in str(error):
                raise
            raise Silent("another driver has written an epoch in the meantime") from None

    def make_identity(self) -> str:
        """The random id in the database, created by the first start."""
        if not (self._keeps(EPOCH_TABLE) and self._keeps(TARGET_TABLE) and self.ids()):
            lock = f"fencepost/{_digest(self._address.database)}"
            self.run("SELECT GET_LOCK(%s, %s)", (lock, PATIENT))
            try:
                self._make_tables()
            finally:
                with suppress(Silent, RowsRefused):
                    self.run("SELECT RELEASE_LOCK(%s)", (lock,))
        return self.identify()

    def _make_tables(self) -> None:
        # Checked first: CREATE … IF NOT EXISTS needs the CREATE privilege, which the user may not have.
        if not self._keeps(EPOCH_TABLE):
            self._change(epoch_table(self._collation()))
        if not self._keeps(TARGET_TABLE):
            self._change(target_table(self._collation()))
        if not self.ids():
            self._write(f"INSERT INTO {TARGET_TABLE} (id) VALUES (%s)", values=(uuid.uuid4().hex,))

    def _keeps(self, table: str) -> bool:
        engine = self._engine(table)
        if engine not in {None, "InnoDB"}:
            raise RowsRefused(
                f"{table} uses {engine}, which has no transactions: run ALTER TABLE {quoted(table)} ENGINE=InnoDB"
            )
        return engine is not None

    def _collation(self) -> str:
        """One in which only identical texts are equal, including case, accents and trailing blanks."""
        found = self.run(
            "SELECT collation_name FROM information_schema.collations"
            " WHERE collation_name IN ('utf8mb4_0900_bin', 'utf8mb4_nopad_bin') ORDER BY collation_name"
        )
        if not found:
            raise RowsRefused("MySQL 8.0.17 or newer, or MariaDB 10.11 or newer, is needed")
        return str(found[0][0])

    def why_it_forgets(self, table: str) -> str | None:
        [(flush, logs, sync)] = self.run(
            "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog"
        )
        if int(flush) != 1:
            return f"innodb_flush_log_at_trx_commit is {flush}"
        # After a crash, what is prepared in InnoDB but missing from the binary log is rolled back.
        return f"log_bin is on and sync_binlog is {sync}" if int(logs) and int(sync) != 1 else None

    # The table.

    def quoted(self, name: str) -> str:
        return quoted(name)

    def declared(self, kind: pa.DataType) -> str:
        return declared(kind, self._collation())

    def create_statement(self, table: Table, schema: pa.Schema) -> str:
        """With an engine and a collation, and with lengths for text key columns."""
        return create_table(quoted(table.name), schema, table.key, self._collation())

    def index_statement(self, table: Table) -> str:
        return f"ALTER TABLE {quoted(table.name)} ADD UNIQUE ({listed(table.key)});"

    def has(self, table: str) -> bool:
        return self._engine(table) is not None

    def columns(self, table: str) -> list[Column]:
        engine = self._engine(table)
        if engine is None:
            return []
        if engine != "InnoDB":
            raise RowsRefused(
                f"it uses {engine}, which has no transactions: run ALTER TABLE {quoted(table)} ENGINE=InnoDB"
            )
        return [_column(*row) for row in self._catalogued(_COLUMNS, table)]

    def misfits(self, schema: pa.Schema, there: list[Column]) -> list[str]:
        return misfits(schema, there)

    def merging(self, table: Table, schema: pa.Schema) -> list[str]:
        """Addresses have several spellings. What a collation calls equal is rejected in the vote."""
        return [
            f"column {column.name!r} is {column.shown}"
            for column in table.columns
            if column.name in table.key and column.type in {"inet4", "inet6"}
        ]

    def refuse_keys(self, batch: pa.RecordBatch, table: Table) -> None:
        super().refuse_keys(batch, table)
        refuse_other_uuids(batch, [one.name for one in table.columns if one.name in table.key and one.type == "uuid"])

    def comparable(self, table: Table, item: pa.Field, value: str) -> str | None:
        """Text as bytes, whatever collation and character set are; other types that hold text have another order."""
        column = column_of(table, item.name)
        if not is_text(as_column_type(item.type)) or column is None:
            return value
        return f"CAST(CONVERT({value} USING utf8mb4) AS BINARY)" if column.type in PLAIN_TEXTS else None

    def resolved(self, table: str) -> str:
        """By the id stored in the database, once there is one; some servers ignore the case of table names."""
        ids = self.ids() if self.has(self.targets) else []
        [(ignores_case,)] = self.run("SELECT @@lower_case_table_names")
        found = {str(row[0]) for row in self.run(_TABLE, (table,))}
        name = table if table in found or not found else min(found)
        return repr((ids or self.place, name.lower() if int(ignores_case) else name))

    def _engine(self, table: str) -> str | None:
        """The table's engine; None if it does not exist. Of MySQL's engines, only InnoDB can roll back."""
        for kind, engine in self._catalogued(_TABLE, table):
            if kind not in {"BASE TABLE", "SYSTEM VERSIONED"}:
                raise RowsRefused(f"{table!r} is a {str(kind).lower()}")
            return str(engine)
        return None

    def _uniques(self, table: str) -> list[Unique]:
        found: dict[str, list[str | None]] = {}
        for index, column, prefix in self._catalogued(_UNIQUE, table):
            found.setdefault(index, []).append(None if prefix else column)
        return [Unique(name, tuple(columns)) for name, columns in found.items()]

    def _catalogued(self, query: str, table: str) -> list[tuple[Any, ...]]:
        """Prefer an exact match, where table names that differ only in case can coexist."""
        found = self.run(query, (table,))
        exact = [row for row in found if row[0] == table]
        return [row[1:] for row in exact or found]

    def make_table(self, statement: str) -> None:
        """It commits, so open another transaction afterwards."""
        self._change(statement)
        self.look()

    def try_out(self, table: Table, schema: pa.Schema, *, removes: bool) -> None:
        """INSERT without a row. ON DUPLICATE KEY uses every unique index, so there may be no other one."""
        if table.key:
            found = self._uniques(table.name)
            others = [unique for unique in found if set(unique.columns) != set(table.key)]
            if len(others) == len(found):
                raise KeyNotUnique
            counted = {column.name for column in table.columns if column.counts and column.name not in schema.names}
            for other in others:
                if not counted & set(other.columns):
                    raise RowsRefused(
                        f"because of its unique index {other.name!r}, a row could replace one with another key"
                    )
        name = quoted(table.name)
        self._write(bulk.insert_nothing(name, schema.names, table.key, self._comparison(table, name)))
        if removes:
            self.run(f"DELETE FROM {quoted(table.name)} WHERE FALSE")
        if table.key:
            self._make_stage(table, schema.names)

    def insert(self, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """LOAD DATA into the table; with a key, into a temporary one first."""
        if not table.key:
            self._load(quoted(table.name), table.columns, schema, batches)
            return
        stage = self._make_stage(table, schema.names)
        self._load(stage, table.columns, schema, batches, counting=True)
        self._insert_from(stage, table, schema.names)
        self.run(f"DROP TEMPORARY TABLE {stage}")

    def delete(self, table: Table, keys: pa.RecordBatch) -> None:
        """Load the keys into a temporary table; those that the server calls equal to others are refused before."""
        stage = self._make_stage(table, keys.schema.names)
        self._load(stage, table.columns, keys.schema, [keys], counting=True)
        self._refuse_merged(stage, table)
        place = quoted(table.name)
        self.run(f"DELETE {place} FROM {place} JOIN {stage} ON {self.matching(table, stage)}")
        self.run(f"DROP TEMPORARY TABLE {stage}")

    def _make_stage(self, table: Table, names: Sequence[str]) -> str:
        """A temporary table: creating and dropping it does not commit, and nobody else sees it."""
        stage = quoted(f"fencepost_{zlib.crc32(repr((quoted(table.name), names)).encode()):08x}")
        self.run(f"DROP TEMPORARY TABLE IF EXISTS {stage}")
        self.run(stage_table(stage, table.columns, names, temporary=True))
        return stage

    def _load(
        self,
        place: str,
        there: list[Column],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        counting: bool = False,
    ) -> None:
        """Write batches into a table; `counting` adds the row's number as a last column."""
        if counting:
            schema, batches = schema.append(pa.field(PLACE, pa.int64())), numbered(batches)
        texts = texts_for(schema, there)
        kinds = {item.name: as_column_type(item.type) for item in schema}
        documents = [one.name for one in there if one.type == "json" and is_text(kinds.get(one.name, pa.null()))]
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                refuse_nulls(batch, there)
                refuse_other_json(batch, documents, doubles=True)  # MySQL's own type; MariaDB's is text
                rows += batch.num_rows
                yield batch

        if self._now.infile:
            statement = bulk.load_statement(place, schema, there)
            found = self._load_data(statement, (lines(batch, texts) for batch in counted()), schema.names)
        else:
            statements = bulk.insert_statements(place, schema, counted(), texts, self._now.packet)
            found = sum(self._write(statement, schema.names) for statement in statements)
        if found != rows:
            raise RowsRefused(f"only {found} of {rows} rows were written")

    def _insert_from(self, stage: str, table: Table, names: Sequence[str]) -> None:
        compared = self._comparison(table, stage)
        self._write(bulk.insert_statement(quoted(table.name), names, stage, table.key, compared), names)
        self._refuse_merged(stage, table)

    def _comparison(self, table: Table, stage: str) -> bulk.Comparison:
        columns = tuple(item.name for item in table.order_by)
        condition = self.not_smaller(table, self.of(stage), self.of(quoted(table.name)))
        return bulk.Comparison(columns, condition)

    def _refuse_merged(self, stage: str, table: Table) -> None:
        merging = [column.name for column in table.columns if column.merges and column.name in table.key]
        if merging and self.run(bulk.merged_statement(quoted(table.name), stage, table.key, merging)):
            raise RowsRefused(
                f"the collation of {listed(merging)} treats keys that differ in case, accents or blanks as equal"
            )

    # Tables that tasks fill.

    def try_staging(self, table: Table, names: Sequence[str]) -> None:
        trial = f"fencepost_try_{uuid.uuid4().hex[:12]}"
        self.drop_tables([trial])  # first: what we cannot drop, we must not create
        self._change(f"CREATE TABLE IF NOT EXISTS {trial} (n int PRIMARY KEY) ENGINE=InnoDB")
        self.run(f"INSERT INTO {trial} (n) SELECT n FROM {trial}")
        self.drop_tables([trial])

    def fill(self, staged: str, table: Table, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """The staged table is visible right away, but empty; its rows arrive in one transaction."""
        self.make_table(stage_table(quoted(staged), table.columns, schema.names, temporary=False))
        try:
            self._load(quoted(staged), table.columns, schema, batches, counting=True)
            self.end()
        except BaseException:
            with suppress(Silent, RowsRefused):
                self.undo()
                self.look()
                self.drop_tables([staged])
            raise

    def move(self, staged: str, table: Table, names: Sequence[str]) -> None:
        if not self.has(staged):
            raise RowsRefused(f"the staged table {staged} no longer exists")
        self._insert_from(quoted(staged), table, names)

    def staged_tables(self) -> list[str]:
        """Tables in our database whose names begin like those of staged tables."""
        found = self.run(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND LEFT(table_name, 10) = 'fencepost_'"
        )
        return [str(name) for (name,) in found]

    def drop_tables(self, tables: Sequence[str]) -> None:
        """One by one, so that a table in use (by a dump, say) does not block the others. Missing tables are skipped."""
        late: Silent | None = None
        for table in tables:
            try:
                self._change(f"DROP TABLE IF EXISTS {listed([table])}")
            except Silent as error:
                late = error
        if late is not None:
            raise late

    def _change(self, statement: str) -> None:
        """Create or drop a table, which also commits the open transaction."""
        if self.voting is not None:
            raise Silent("a vote is open, and creating or dropping tables would commit it")
        self.run(statement)
        self._began, self._changed = False, True


def _digest(*parts: str) -> str:
    """Short, because lock names have at most 64 characters."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def epoch_table(collation: str) -> str:
    text = f"CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL"
    return (
        f"CREATE TABLE {EPOCH_TABLE} (job varchar(255) {text}, sink varchar(255) {text}, lineage varchar(64) {text},"
        f" generation bigint NOT NULL, epoch bigint NOT NULL, handle longtext {text}, writer bigint NOT NULL,"
        f" format bigint NOT NULL, fencepost varchar(64) {text}, PRIMARY KEY (job, sink)) ENGINE=InnoDB"
    )


def target_table(collation: str) -> str:
    text = f"CHARACTER SET utf8mb4 COLLATE {collation}"
    return f"CREATE TABLE {TARGET_TABLE} (id varchar(64) {text} PRIMARY KEY) ENGINE=InnoDB"


_THERE = "WHERE table_schema = DATABASE() AND table_name = %s"
_TABLE = f"SELECT table_name, table_type, engine FROM information_schema.tables {_THERE}"
_COLUMNS = (
    "SELECT table_name, column_name, data_type, column_type, character_maximum_length, numeric_precision,"
    " numeric_scale, datetime_precision, character_set_name, collation_name, is_nullable, column_default, extra"
    f" FROM information_schema.columns {_THERE} ORDER BY ordinal_position"
)
_UNIQUE = (
    "SELECT table_name, index_name, column_name, sub_part FROM information_schema.statistics"
    f" {_THERE} AND non_unique = 0 ORDER BY index_name, seq_in_index"
)


class Unique(NamedTuple):
    """A primary key or a unique index."""

    name: str
    columns: tuple[str | None, ...]
    """None for anything but a whole column: a prefix, an expression."""


def _column(  # noqa: PLR0917 - a row of the catalogue
    name: str,
    kind: str,
    shown: str,
    length: int | None,
    precision: int | None,
    scale: int | None,
    fraction: int | None,
    charset: str | None,
    collation: str | None,
    nullable: str,
    default: str | None,
    extra: str,
) -> Column:
    extra = extra.lower()
    counts = "auto_increment" in extra
    return Column(
        name=name,
        type=kind.lower(),
        shown=shown,
        length=length,
        precision=precision,
        scale=scale,
        fraction=fraction,
        charset=charset,
        collation=collation,
        nullable=nullable == "YES",
        required=nullable == "NO" and default is None and not counts,
        counts=counts,
        generated=" generated" in extra,
    )
