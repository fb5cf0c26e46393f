"""One connection to a cluster. Never lets an error of the client out: those may quote a row.

Silent        no answer, or one that says nothing about what the target holds
RowsRefused   the target answered, and does not do it
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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

from fencepost.sinks.cassandra import cql
from fencepost.sinks.cassandra.durability import CONSISTENCIES
from fencepost.sinks.cassandra.sink import Cassandra
from fencepost.sinks.database import RowsRefused, Silent

CONNECT_S = 10.0
REQUEST_S = 20.0
"""Longer than a server waits for its replicas (2 s for a write, 5 s at most, by default)."""
IN_FLIGHT = 200
PROTOCOL = 5
"""Of Cassandra 4.0 and newer: asked for by number, the client does not try older ones first."""

_logger = logging.getLogger("cassandra")
_logger.addHandler(logging.NullHandler())
# Server warnings may quote the statement they are about, and debug lines quote everything.
for _talkative in ("cluster", "concurrent", "connection", "io.libevreactor", "metadata", "pool", "protocol", "query"):
    logging.getLogger(f"cassandra.{_talkative}").addFilter(
        lambda record: record.levelno > logging.INFO and not str(record.msg).startswith("Server warning")
    )


class Connection:
    """Connects when it is needed; after a silence it connects anew."""

    def __init__(self, sink: Cassandra) -> None:
        self._sink = sink
        self._cluster: Any = None
        self._session: Any = None
        self._prepared: dict[tuple[str, bool], PreparedStatement] = {}

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a statement once."""
        with _in_our_words():
            return list(self._now.execute(statement, tuple(values)))

    def serially(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Read what the conditional writes before left, or write on a condition: the one row of the answer, or None.

        A plain read may miss a conditional write that nobody has finished yet.
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
        """All of them, acknowledged."""
        with _in_our_words():
            execute_concurrent(self._now, [(statement, None) for statement in statements], concurrency=IN_FLIGHT)

    def may_write(self, keyspace: str, table: str, columns: Sequence[str]) -> bool:
        """Has this user the right to? Asked by a row that is refused either way, but for another reason."""
        try:
            self.rows(cql.insert_nothing(keyspace, table, columns))
        except NotAllowed:
            return False
        except RowsRefused:
            return True
        raise AssertionError("Cassandra took a row without a key")

    def settings(self) -> dict[str, str | None]:
        """Of the node that is asked; empty if this user may not read them."""
        try:
            return {row.name: row.value for row in self.rows(cql.SETTINGS)}
        except RowsRefused:
            return {}

    def drop(self) -> None:
        """Throw it away, so that the next question goes to the target. Does not raise."""
        cluster, self._cluster, self._session = self._cluster, None, None
        self._prepared.clear()
        if cluster is not None:
            try:
                cluster.shutdown()
            except Exception:
                logging.getLogger(__name__).exception("a connection could not be closed in order")

    @property
    def _now(self) -> Any:
        """The client's session."""
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
            auth_provider=PlainTextAuthProvider(sink.user, sink.password) if sink.user is not None else None,
            ssl_context=ssl.create_default_context() if sink.tls is True else sink.tls or None,
            protocol_version=PROTOCOL,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            # The default waits twice as long after every failure, up to ten minutes.
            reconnection_policy=ConstantReconnectionPolicy(1.0, max_attempts=None),
            connect_timeout=CONNECT_S,
            control_connection_timeout=CONNECT_S,
        )


class NotAllowed(RowsRefused):
    """The user has not the right."""


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except Unauthorized:
        raise NotAllowed("the user has not the right") from None
    except (RequestValidationException, SyntaxException, UnsupportedOperation) as error:
        raise RowsRefused(f"it refuses the statement ({type(error).__name__})") from None
    except NoHostAvailable as error:
        causes = error.errors.values() if isinstance(error.errors, dict) else ()
        if any(isinstance(cause, AuthenticationFailed) for cause in causes):
            raise NotAllowed("the log-in is refused") from None
        names = sorted({type(cause).__name__ for cause in causes})
        raise Silent(f"no node answers ({', '.join(names) or 'none is known'})") from None
    except (DriverException, ErrorMessage, ConnectionException, ConnectionBusy, ProtocolError, OSError) as error:
        raise Silent(f"no good answer ({type(error).__name__})") from None
