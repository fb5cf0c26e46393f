"""One Cassandra cluster: the connection, the checks of keyspace and table before the first row, and all statements.

Silent        no answer, or one that says nothing about what the target holds
Denied        it refused the login
NotAllowed    this user lacks a permission
RowsRefused   the target answered, and refused

Never lets the client's errors out: they may quote a row. Never alters an existing table: everything that does not fit
is reported at once.
"""

from __future__ import annotations

import logging
import re
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    RequestValidationException,
    Unauthorized,
    UnsupportedOperation,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.concurrent import execute_concurrent
from cassandra.connection import ConnectionBusy, ConnectionException, ProtocolError
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.protocol import ErrorMessage, SyntaxException
from cassandra.query import BoundStatement, PreparedStatement

from fencepost import credential
from fencepost.connectors.cassandra.columns import Column, declared, key_of, misfits, parsed
from fencepost.connectors.cassandra.sink import CONSISTENCIES, Cassandra
from fencepost.connectors.table.database import EPOCH_TABLE, TARGET_TABLE, Denied, NotAllowed, RowsRefused, Silent
from fencepost.connectors.table.mark import MARK, Mark, Seen
from fencepost.errors import FencepostError
from fencepost.protocol.format import VERSION

CONNECT_S = 10.0
REQUEST_S = 20.0
"""Longer than a node waits for its replicas (by default 2 s for a write, 5 s at most)."""
IN_FLIGHT = 200
PROTOCOL = 5
"""Cassandra 4.0 and newer. Given a number, the client does not have to negotiate one."""
MOST_BYTES = 16 * 2**20
"""Of one row, if the cluster does not say: half of a log segment, whose default is 32 MiB."""
SHORTEST_MEMORY_S = 3600
"""The smallest gc_grace_seconds we accept: how long an older driver may stall and still do no harm."""

COLUMNS = (
    "SELECT column_name, type, kind, position FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
)
TABLE = "SELECT gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
KEYSPACE = "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s"
SETTINGS = "SELECT name, value FROM system_views.settings"
NOW = "SELECT toUnixTimestamp(now()) AS ms FROM system.local"

Key = tuple[tuple[str, ...], tuple[str, ...]]
"""Partition key, clustering columns."""

Used = TypeVar("Used")
Refuse = Callable[[str, str, str], FencepostError]
"""Makes the error: code, what, next."""

_logger = logging.getLogger("cassandra")
_logger.addHandler(logging.NullHandler())
# Server warnings may quote the statement they refer to, and debug lines quote everything.
for _talkative in ("cluster", "concurrent", "connection", "io.libevreactor", "metadata", "pool", "protocol", "query"):
    logging.getLogger(f"cassandra.{_talkative}").addFilter(
        lambda record: record.levelno > logging.INFO and not str(record.msg).startswith("Server warning")
    )


def _login(sink: Cassandra) -> Any:
    if sink.user is None or sink.password is None:
        return None
    return PlainTextAuthProvider(sink.user, credential.resolve(sink.password, f"password= of sink {sink.name!r}"))


class Connection:
    """Connects when needed, and again after the cluster did not answer."""

    def __init__(self, sink: Cassandra) -> None:
        self._sink = sink
        self._cluster: Any = None
        self._session: Any = None
        self._prepared: dict[tuple[str, bool], PreparedStatement] = {}

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with _in_our_words():
            return list(self._now.execute(statement, tuple(values)))

    def serially(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run a serial read or a conditional write; returns its one row, or None.

        A plain read may miss a conditional write that nobody has completed yet.
        """
        with _in_our_words():
            return self._now.execute(self.prepared(statement, serial=statement.startswith("SELECT")), values).one()

    def prepared(self, statement: str, *, serial: bool = False, repeatable: bool = False) -> PreparedStatement:
        """Prepare a statement, once per connection."""
        found = self._prepared.get((statement, serial))
        if found is None:
            with _in_our_words():
                found = self._now.prepare(statement)
            if serial:
                found.consistency_level = getattr(ConsistencyLevel, CONSISTENCIES[self._sink.consistency])
            found.is_idempotent = repeatable
            self._prepared[statement, serial] = found
        return found

    def write(self, statements: Sequence[BoundStatement]) -> None:
        """Returns when all of them are acknowledged."""
        with _in_our_words():
            execute_concurrent(self._now, [(statement, None) for statement in statements], concurrency=IN_FLIGHT)

    def may_write(self, keyspace: str, table: str, columns: Sequence[str]) -> bool:
        """May this user write? Tested with a row that is refused either way, but for different reasons."""
        try:
            self.rows(insert_nothing(keyspace, table, columns))
        except NotAllowed:
            return False
        except RowsRefused:
            return True
        raise AssertionError("Cassandra accepted a row without a key")

    def settings(self) -> dict[str, str | None]:
        """Of the node that answers; empty if this user may not read them."""
        try:
            return {row.name: row.value for row in self.rows(SETTINGS)}
        except RowsRefused:
            return {}

    def drop(self) -> None:
        """Close the connection, so that the next call connects again. Does not raise."""
        cluster, self._cluster, self._session = self._cluster, None, None
        self._prepared.clear()
        if cluster is not None:
            try:
                cluster.shutdown()
            except Exception:
                logging.getLogger(__name__).exception("a connection could not be closed properly")

    @property
    def _now(self) -> Any:
        if self._session is None:
            self.drop()
            self._cluster = self._new()
            try:
                self._session = self._cluster.connect()
            except BaseException:
                self.drop()
                raise
        return self._session

    def _new(self) -> Any:
        sink = self._sink
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(sink.datacenter)),
            consistency_level=getattr(ConsistencyLevel, sink.consistency),
            serial_consistency_level=getattr(ConsistencyLevel, CONSISTENCIES[sink.consistency]),
            request_timeout=REQUEST_S,
        )
        return Cluster(
            sink.all_hosts,
            port=sink.port,
            auth_provider=_login(sink),
            ssl_context=ssl.create_default_context() if sink.tls is True else sink.tls or None,
            protocol_version=PROTOCOL,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            # The default waits twice as long after every failure, up to ten minutes.
            reconnection_policy=ConstantReconnectionPolicy(1.0, max_attempts=None),
            connect_timeout=CONNECT_S,
            control_connection_timeout=CONNECT_S,
        )


@contextmanager
def _in_our_words() -> Iterator[None]:
    """What an error means, without its text: must a person change something, or is it worth a retry?"""
    try:
        yield
    except Unauthorized:
        raise NotAllowed("this user lacks a permission") from None
    except (RequestValidationException, SyntaxException, UnsupportedOperation) as error:
        raise RowsRefused(f"it refused the statement ({type(error).__name__})") from None
    except NoHostAvailable as error:
        causes = list(error.errors.values()) if isinstance(error.errors, dict) else []
        if any(isinstance(cause, AuthenticationFailed) and _UNDECIDED not in str(cause) for cause in causes):
            raise Denied("it refused the login") from None
        names = sorted({type(cause).__name__ for cause in causes})
        raise Silent(f"no node answers ({', '.join(names) or 'none is known'})") from None
    except (DriverException, ErrorMessage, ConnectionException, ConnectionBusy, ProtocolError, OSError) as error:
        raise Silent(f"the request failed ({type(error).__name__})") from None


_UNDECIDED = "Unable to perform authentication"
"""What a node says if it cannot read the roles right now, with the same class of error as for a wrong password."""


class Target:
    """The table, our two tables, and their keyspace."""

    def __init__(self, sink: Cassandra, connection: Connection, refused: Refuse) -> None:
        self._sink = sink
        self._connection = connection
        self._refused = refused

    def look(self, schema: pa.Schema, *, is_new: Callable[[], bool]) -> tuple[str, list[Column], int]:
        """Check everything and create what is missing; returns identity, columns and the most bytes of a row."""
        sink, connection = self._sink, self._connection
        keyspaces = connection.rows(KEYSPACE, (sink.keyspace,))
        if not keyspaces:
            raise self._refused(
                "target_missing",
                f"Keyspace {sink.keyspace!r} does not exist.",
                f"Create it, with the replication you need:\n{create_keyspace(sink.keyspace)}",
            )
        identity = self._our_tables()
        columns = self.columns() or self._make(schema, is_new=is_new)
        self._check_columns(schema, columns)
        listed = connection.rows(TABLE, (sink.keyspace, sink.table_name))
        if not listed:
            raise self._refused(
                "schema_does_not_fit", f"{sink.table} is a view, which cannot be written.", "Name its base table."
            )
        settings = connection.settings()
        facts = Facts(
            replication=keyspaces[0].replication,
            durable_writes=keyspaces[0].durable_writes,
            commitlog_sync=settings.get("commitlog_sync"),
            gc_grace_s=listed[0].gc_grace_seconds,
        )
        self._check_durability(facts)
        insert = insert_into(sink.keyspace, sink.table_name, schema.names)
        self._known(
            lambda: connection.prepared(insert, repeatable=True), make=lambda: self._make(schema, is_new=is_new)
        )
        if not connection.may_write(sink.keyspace, sink.table_name, schema.names):
            raise self._refused(
                "target_unusable",
                f"This user may not write to table {sink.table}.",
                f"GRANT MODIFY ON {quoted(sink.keyspace)}.{quoted(sink.table_name)} TO …; "
                "and GRANT SELECT and MODIFY on fencepost_epoch and fencepost_target.",
            )
        return f"{identity}:{sink.table}", columns, most_bytes(settings)

    def peek(self, job: str, sink: str) -> Seen:
        """The identity and the mark, if they exist, and whether the table does. Creates nothing."""
        keyspace, ours = self._sink.keyspace, OurTables(self._sink.keyspace)
        there = [name for name in ours.create if self._connection.rows(TABLE, (keyspace, name))]
        ids = self._connection.rows(ours.identity) if TARGET_TABLE in there else []
        rows = self._connection.rows(ours.read.replace("?", "%s"), (job, sink)) if EPOCH_TABLE in there else []
        marks = [mark_in(row, job, sink) for row in rows if row.epoch is not None]
        return Seen(str(ids[0].id) if ids else "", marks[0] if marks else None, bool(self.columns()))

    def missing(self) -> tuple[str, ...]:
        """What `look` would create; nothing without a keyspace, because it does not create keyspaces."""
        sink = self._sink
        if not self._connection.rows(KEYSPACE, (sink.keyspace,)) or not sink.create:
            return ()
        names = [*OurTables(sink.keyspace).create, sink.table_name]
        return tuple(f"table {name}" for name in names if not self._connection.rows(TABLE, (sink.keyspace, name)))

    def columns(self) -> list[Column]:
        """The table's columns; empty if it does not exist."""
        found = self._connection.rows(COLUMNS, (self._sink.keyspace, self._sink.table_name))
        return [
            Column(name=row.column_name, type=parsed(row.type), kind=row.kind, position=row.position) for row in found
        ]

    def _our_tables(self) -> str:
        connection, ours = self._connection, OurTables(self._sink.keyspace)
        listed = [name for name in ours.create if connection.rows(TABLE, (self._sink.keyspace, name))]
        self._make_ours(except_for=listed)
        return self._known(self._identity, make=self._make_ours)

    def _make_ours(self, except_for: Sequence[str] = ()) -> None:
        for name, statement in OurTables(self._sink.keyspace).create.items():
            try:
                if name not in except_for:
                    self._connection.rows(statement)
            except RowsRefused as error:
                raise self._refused(
                    "target_unusable", f"Table {name} cannot be created: {error}.", f"Create it:\n{statement};"
                ) from None

    def _identity(self) -> str:
        connection, ours = self._connection, OurTables(self._sink.keyspace)
        connection.prepared(ours.read, serial=True)
        found = connection.serially(ours.identity)
        if found is None:
            mine = uuid.uuid4().hex
            answer = connection.serially(ours.identify, (mine,))
            return mine if answer.applied else str(answer.id)
        return str(found.id)

    def _known(self, use: Callable[[], Used], *, make: Callable[[], object]) -> Used:
        """Use a table that is listed; if the node does not know it after all, create it.

        A node that was killed while it created a table lists it after a restart, but cannot use it until the next one.
        """
        try:
            return use()
        except NotAllowed:
            raise
        except RowsRefused:
            make()
            return use()

    def _make(self, schema: pa.Schema, *, is_new: Callable[[], bool]) -> list[Column]:
        sink = self._sink
        if not is_new():
            raise self._refused(
                "table_lost",
                f"Table {sink.table} is gone, although this sink of this job has already written epochs to it.",
                "Restore the table from a backup, or name the one that the job wrote to.",
            )
        if not sink.create or sink.key is None:
            cure = "Create it, or set create=True and key=…." if sink.key is None else "Create it, or set create=True."
            raise self._refused("target_missing", f"Table {sink.table} does not exist.", cure)
        key = sink.columns_of_key
        if missing := [name for part in key for name in part if name not in schema.names]:
            raise self._refused(
                "key_not_in_rows",
                f"key= names {', '.join(map(repr, missing))}, which the DataFrame does not have.",
                f"Choose from the DataFrame's columns: {', '.join(schema.names)}.",
            )
        try:
            self._connection.rows(create_table(sink.keyspace, sink.table_name, schema, key))
        except KeyError as error:
            raise self._refused(
                "schema_does_not_fit", f"Cassandra has no type for {error}.", "Cast the column to another type."
            ) from None
        return self.columns()

    def _check_columns(self, schema: pa.Schema, columns: list[Column]) -> None:
        sink = self._sink
        problems = misfits(schema, columns)
        if any(column.type.name == "counter" for column in columns):
            problems = ["it is a counter table: an increment cannot be repeated after a crash"]
        elif sink.key is not None and sink.columns_of_key != key_of(columns):
            problems.append("its PRIMARY KEY differs from key=")
        if problems:
            raise self._refused(
                "schema_does_not_fit",
                f"Table {sink.table} does not fit the DataFrame: {'; '.join(problems)}.",
                "Change the table or the DataFrame's columns (select, cast, alias).",
            )

    def _check_durability(self, facts: Facts) -> None:
        why = weakness(facts, self._sink.consistency)
        if why is None or self._sink.durable is not None:
            return
        raise self._refused(
            "target_forgets",
            f"Table {self._sink.table} may lose rows that it has acknowledged: {why}.",
            "Set commitlog_sync: batch (or group) in cassandra.yaml on every node, or use replication factor 3 and "
            "write to a quorum; set durable_writes = true, and gc_grace_seconds to an hour or more. To accept the "
            "risk: durable=False with guarantee='at_least_once'.",
        )


def mark_in(row: Any, job: str, sink: str) -> Mark:
    """The mark that a row holds."""
    try:
        return Mark(
            row.lineage, row.generation, row.epoch, row.handle or "", row.writer or 0, row.format, row.fencepost or ""
        )
    except FencepostError as error:
        raise error.at(job=job, sink=sink) from None


def most_bytes(settings: dict[str, str | None]) -> int:
    named = (settings.get("max_mutation_size"), settings.get("native_transport_max_frame_size"))
    return min((size for text in named if (size := _bytes(text))), default=MOST_BYTES)


def _bytes(text: str | None) -> int | None:
    """`4096KiB`."""
    found = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)", text or "")
    return int(found[1]) * 1024 ** ("B", "KiB", "MiB", "GiB").index(found[2]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a cluster says about a table's durability."""

    replication: Mapping[str, str]
    """As in system_schema.keyspaces."""
    durable_writes: bool
    commitlog_sync: str | None
    """Of the node that answered; None if this user may not read it."""
    gc_grace_s: int


def weakness(facts: Facts, consistency: str) -> str | None:
    """How the table could lose rows, for people; None if that takes more than one failed node.

    By default a node acknowledges first and writes its log to disk up to ten seconds later, so a single replica's
    acknowledgement proves nothing.
    """
    if not facts.durable_writes:
        return "its keyspace has durable_writes = false, so a node that restarts loses what was in its memory"
    if facts.gc_grace_s < SHORTEST_MEMORY_S:
        return (
            f"it has gc_grace_seconds = {facts.gc_grace_s}: after that time it no longer knows that a value or a "
            "row was removed, and an older driver that resumes later could bring it back"
        )
    if acknowledged_by(facts.replication, consistency) > 1 or facts.commitlog_sync in {"batch", "group"}:
        return None
    if facts.commitlog_sync is None:
        return (
            "a write is acknowledged by one replica, and we cannot check whether it writes to disk first "
            "(SELECT on system_views.settings is not granted)"
        )
    return (
        f"a write is acknowledged by one replica, which has commitlog_sync: {facts.commitlog_sync} and writes its log "
        "to disk later; if it crashes before that, rows of a finished epoch are lost"
    )


def acknowledged_by(replication: Mapping[str, str], consistency: str) -> int:
    """How many replicas have a row once it is acknowledged; for LOCAL_QUORUM, in the smallest datacenter."""
    factors = [full_replicas(value) for key, value in replication.items() if key != "class"]
    if not factors:
        return 1
    return {
        "LOCAL_QUORUM": min(factors) // 2 + 1,
        "QUORUM": sum(factors) // 2 + 1,
        "ALL": sum(factors),
    }[consistency]


def full_replicas(factor: str) -> int:
    """`3`, or `3/1`: three, one of them transient."""
    total, _, transient = factor.partition("/")
    if not total.isdigit():
        return 1
    return int(total) - (int(transient) if transient.isdigit() else 0)


# The statements. Identifiers are quoted by one function; values are always bound, never pasted in.


def quoted(name: str) -> str:
    """Quote an identifier, whatever characters it has; its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal, for statements that people run."""
    return "'" + text.replace("'", "''") + "'"


def insert_into(keyspace: str, table: str, names: Sequence[str]) -> str:
    """The one statement that writes a row; the last value is the timestamp, in microseconds."""
    columns, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
    return f"INSERT INTO {quoted(keyspace)}.{quoted(table)} ({columns}) VALUES ({marks}) USING TIMESTAMP ?"


def delete_from(keyspace: str, table: str, key: Sequence[str]) -> str:
    """The one statement that removes a row; the first value is the timestamp."""
    condition = " AND ".join(f"{quoted(name)} = ?" for name in key)
    return f"DELETE FROM {quoted(keyspace)}.{quoted(table)} USING TIMESTAMP ? WHERE {condition}"


def insert_nothing(keyspace: str, table: str, names: Sequence[str]) -> str:
    """A row that no table accepts, because it has no key. Permissions are checked before that."""
    columns, nulls = ", ".join(map(quoted, names)), ", ".join(["null"] * len(names))
    return f"INSERT INTO {quoted(keyspace)}.{quoted(table)} ({columns}) VALUES ({nulls})"


def create_table(keyspace: str, table: str, schema: pa.Schema, key: Key) -> str:
    """A table that fits the DataFrame; `KeyError` if Cassandra has no type for a column."""
    partition, clustering = (", ".join(map(quoted, part)) for part in key)
    parts = [f"{quoted(item.name)} {declared(item.type)}" for item in schema]
    parts.append(f"PRIMARY KEY (({partition}){', ' + clustering if clustering else ''})")
    return f"CREATE TABLE IF NOT EXISTS {quoted(keyspace)}.{quoted(table)} ({', '.join(parts)})"


def create_keyspace(keyspace: str) -> str:
    """For people to run: the number of replicas is not ours to choose."""
    return (
        f"CREATE KEYSPACE {quoted(keyspace)} WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3};"
    )


@dataclass(frozen=True, slots=True)
class OurTables:
    """The tables of the marks and of the identity, in the keyspace of the rows."""

    keyspace: str

    @property
    def epoch(self) -> str:
        return f"{quoted(self.keyspace)}.{EPOCH_TABLE}"

    @property
    def target(self) -> str:
        return f"{quoted(self.keyspace)}.{TARGET_TABLE}"

    @property
    def create(self) -> dict[str, str]:
        """The CREATE statements, by table. `written_at_us` is the newest timestamp that rows were written with."""
        return {
            EPOCH_TABLE: f"CREATE TABLE IF NOT EXISTS {self.epoch} (job text, sink text, lineage text, generation int, "
            "epoch bigint, handle text, writer int, written_at_us bigint, format int, fencepost text, "
            "PRIMARY KEY ((job, sink)))",
            TARGET_TABLE: f"CREATE TABLE IF NOT EXISTS {self.target} (one int PRIMARY KEY, id text)",
        }

    @property
    def read(self) -> str:
        """Reads the mark of a job's sink."""
        columns = "lineage, generation, epoch, handle, writer, format, fencepost, written_at_us"
        return f"SELECT {columns} FROM {self.epoch} WHERE job = ? AND sink = ?"

    @property
    def first(self) -> str:
        """Writes the first mark."""
        return (
            f"INSERT INTO {self.epoch} "
            "(lineage, generation, epoch, handle, writer, format, fencepost, written_at_us, job, sink) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
        )

    @property
    def next(self) -> str:
        """Writes the next mark, if the one that was read is still there."""
        return (
            f"UPDATE {self.epoch} SET lineage = ?, generation = ?, epoch = ?, handle = ?, writer = ?, format = ?, "
            "fencepost = ?, written_at_us = ? WHERE job = ? AND sink = ? "
            "IF lineage = ? AND generation = ? AND epoch = ? AND written_at_us = ?"
        )

    @property
    def identity(self) -> str:
        return f"SELECT id FROM {self.target} WHERE one = 0"

    @property
    def identify(self) -> str:
        """Gives the target an id, if it has none."""
        return f"INSERT INTO {self.target} (one, id) VALUES (0, ?) IF NOT EXISTS"

    def remove_by_hand(self, job: str, sink: str) -> str:
        """For people: conditional like ours, because conditional and plain writes must not be mixed on one row."""
        return f"DELETE FROM {self.epoch} WHERE job = {literal(job)} AND sink = {literal(sink)} IF EXISTS;"

    def add_by_hand(self, job: str, sink: str, lineage: str, generation: int, written_at: int) -> str:
        """For people, with `{epoch}` to be filled in; works whether or not there is a mark."""
        named = f"{literal(job)}, {literal(sink)}, {literal(lineage)}, {generation}, "
        return (
            f"{self.remove_by_hand(job, sink)} INSERT INTO {self.epoch} "
            "(job, sink, lineage, generation, epoch, handle, writer, format, fencepost, written_at_us) "
            f"VALUES ({named}{{epoch}}, '', 0, {MARK.number}, {literal(VERSION)}, {written_at}) IF NOT EXISTS;"
        )
