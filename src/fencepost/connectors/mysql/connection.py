"""One PyMySQL connection, set up so that nothing is silently cut, rounded or lost; and what its errors mean.

Never opens a file that the server asks for: LOAD DATA LOCAL gets our rows, whatever file name the server sends. Never
passes on the server's error texts: they quote rows. Only the name of a known column or of a constraint is taken from
them, from a place where no value can be.
"""

from __future__ import annotations

import configparser
import contextlib
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pymysql
from pymysql import connections
from pymysql.constants import CLIENT, COMMAND, SERVER_STATUS

from fencepost.connectors.mysql.columns import quoted
from fencepost.connectors.table.database import BadValue, Conflict, Denied, Late, NotAllowed, RowsRefused, Silent

IDLE_S = 60
"""How long the server keeps an idle session. A transaction is idle between vote and decision, which takes milliseconds;
a driver that stalls there must not keep its locks. Between epochs we reconnect."""
CONNECT_S = 10
PACKET = 256 * 1024
"""Bytes of rows in one packet."""

SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"  # otherwise 0 becomes the next number of an AUTO_INCREMENT column
)
SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    # Rows arrive as fast as Spark produces them: during a load, the server has to wait for the next one.
    f"SET SESSION time_zone = '+00:00', sql_notes = 1, wait_timeout = {IDLE_S}, net_read_timeout = 3600",
)
"""Overrides what is set for the server: how our rows are read must not depend on it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is, and who connects. Pickled with the plan."""

    database: str
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    unix_socket: str | None = None
    tls: bool | str | None = None
    defaults_file: str | None = None


class Connection(connections.Connection):  # type: ignore[misc]  # PyMySQL has no types
    """PyMySQL's, with LOAD DATA LOCAL from memory instead of a file."""

    infile = False
    """Does the server allow LOAD DATA LOCAL?"""
    packet = 0
    """Bytes that the server accepts in one packet."""

    def _create_ssl_ctx(self, wanted: Any) -> ssl.SSLContext:
        """PyMySQL loads all CA certificates, which takes as long as ten logins, even if nothing is verified."""
        if wanted:
            return cast("ssl.SSLContext", super()._create_ssl_ctx(wanted))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    @property
    def in_transaction(self) -> bool:
        """According to the server's last answer."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def load(self, statement: str, texts: Iterable[memoryview]) -> tuple[int, int]:
        """LOAD DATA LOCAL; returns the number of rows loaded and of warnings."""
        self._execute_command(COMMAND.COM_QUERY, statement)
        answer = self._read_packet()
        assert answer.is_load_local_packet(), "LOAD DATA LOCAL asks for a file"
        size = min(PACKET, self.packet - 1)
        try:
            for text in texts:
                for first in range(0, len(text), size):
                    self.write_packet(text[first : first + size])
            self.write_packet(b"")
        except BaseException:
            self._force_close()  # the server would read whatever we send next as rows
            raise
        done = self._read_ok_packet()
        return done.affected_rows, done.warning_count


def connect(address: Address) -> Connection:
    """A connection in autocommit mode, which only matters outside a transaction."""
    connection = None
    try:
        connection = Connection(
            host=address.host,
            port=address.port or 0,
            user=address.user,
            password=(address.password or "").encode(),
            database=address.database,
            unix_socket=address.unix_socket,
            read_default_file=address.defaults_file,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_S,
            read_timeout=CONNECT_S,
            sql_mode=SQL_MODE,
            # Not local_infile=True: PyMySQL would then send any file that the server asks for.
            client_flag=CLIENT.LOCAL_FILES | CLIENT.FOUND_ROWS,
            defer_connect=True,
            **_tls(address),
        )
        with explained():
            connection.connect()
            _set_up(connection)
    except (ValueError, OSError, configparser.Error):
        # From the defaults file or the CA file; the text may quote a line of it.
        raise Denied("defaults_file= or the CA file of tls= cannot be read") from None
    except BaseException:
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
        raise
    return connection


def _set_up(connection: Connection) -> None:
    connection._read_timeout = None  # only the handshake has a timeout: a large INSERT takes its time
    if connection.unix_socket is None:
        for option, value in _KEEPALIVE:
            connection._sock.setsockopt(socket.IPPROTO_TCP, option, value)
    with connection.cursor() as cursor:
        for setting in SETTINGS:
            cursor.execute(setting)
        cursor.execute("SELECT @@local_infile, @@max_allowed_packet")
        [(infile, packet)] = cursor.fetchall()
    connection.infile, connection.packet = bool(infile), int(packet)


def _tls(address: Address) -> dict[str, Any]:
    """By default PyMySQL uses TLS if the server offers it, and does not verify its certificate."""
    if address.tls is None and not address.unix_socket:
        return {}
    if not address.tls:
        return {"ssl_disabled": True}
    context = ssl.create_default_context(cafile=address.tls if isinstance(address.tls, str) else None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # certificates that MySQL generates itself are not strict
    return {"ssl": context}


_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_USER_TIMEOUT, 30_000),
)


@contextlib.contextmanager
def explained(columns: Sequence[str] = ()) -> Iterator[None]:
    """Turn PyMySQL's errors into ours; if one is about one of these columns, name it."""
    try:
        yield
    except pymysql.Error as error:
        raise meaning(code_of(error), str(error.args[-1]) if error.args else "", columns) from None
    except (OSError, RuntimeError, LookupError, AssertionError):
        # A server that does not speak the protocol, or asks for one of our files, which it never gets.
        raise Silent("its answer is not valid MySQL protocol") from None


def code_of(error: pymysql.Error) -> int:
    """The server's error number; 0 if the error is PyMySQL's own."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def meaning(code: int, text: str, columns: Sequence[str] = ()) -> Exception:
    """Our error for an error or a warning of the server."""
    if code in _CONFLICTS:
        return Conflict("it ended our transaction in favour of another one (a deadlock)")
    if code in _DENIED or (code == 2003 and "CERTIFICATE_VERIFY_FAILED" in text):
        return Denied(_DENIED.get(code, _TLS))
    if code in _LATE:
        return Late(_LATE[code])
    if code in _SILENT or code == 0 or 2000 <= code < 3000:
        return Silent(_SILENT.get(code, "the connection was lost or could not be made"))
    named = _column_in(text, columns) or _constraint_in(text)
    words = _REFUSED.get(code, f"error {code}") + (f", {named}" if named else "")
    return (NotAllowed if code in _RIGHTS else BadValue if code in _VALUES else RowsRefused)(words)


def _column_in(text: str, columns: Sequence[str]) -> str | None:
    """After the value, if there is one: "… for column `shop`.`orders`.`v` at row 1"."""
    found = re.search(r"[Cc]olumn ['`](?:[^'`]+`\.`)*([^'`]+)['`](?: at row \d+| cannot be null)$", text)
    return f"column {quoted(found[1])}" if found and found[1] in columns else None


def _constraint_in(text: str) -> str | None:
    for place in _CONSTRAINTS:
        if found := place.search(text):
            return f"constraint {quoted(found[1])}"
    return None


_CONSTRAINTS = (
    re.compile(r"^Duplicate entry .* for key '([^']+)'$", re.DOTALL),
    re.compile(r"^CONSTRAINT `([^`]+)` failed for "),
    re.compile(r"^Check constraint '([^']+)' is violated"),
    re.compile(
        r"^Cannot add or update a child row: a foreign key constraint fails .*?CONSTRAINT `([^`]+)` FOREIGN KEY"
    ),
)
_CONFLICTS = {1020, 1213, 1412, 1614}
_VALUES = {1048, 1118, 1153, 1263, 1264, 1265, 1292, 1301, 1366, 1367, 1406, 1690, 3140, 3819, 4025}
_RIGHTS = {1044, 1142, 1143, 1227, 1370}
_LACKS, _LOGIN = "this user lacks a privilege", "it refused the login"
_TLS = "TLS cannot be set up the way tls= asks for"
_DENIED = {
    1045: _LOGIN,
    1049: "the database does not exist",
    1129: "it blocked our host after too many failed connections (run FLUSH HOSTS)",
    1130: "it does not accept connections from our host",
    1251: "it requires a login method that this client does not support",
    1698: _LOGIN,
    1820: "the password has expired",
    1862: "the password has expired",
    2026: _TLS,
    2059: "it requires a login method that this client does not support",
    3118: "the account is locked",
    3159: "it accepts TLS connections only",
    4151: "the account is locked",
}
"""What a person has to change. Any other reason why we cannot connect may pass by itself."""
_FULL, _READ_ONLY, _ENDING = "its disk is full", "it is read-only (a replica?)", "it is shutting down"
_BUSY, _ENDED = "it has too many connections", "it ended the statement or the session"
_SILENT = {
    1021: _FULL,
    1030: "its storage failed",
    1037: "it is out of memory",
    1038: "it is out of memory",
    1040: _BUSY,
    1041: "it is out of memory",
    1047: "it is not ready for statements",
    1053: _ENDING,
    1105: "it reports an unknown error",
    1114: _FULL,
    1158: "the connection was lost",
    1159: "the connection was lost",
    1160: "the connection was lost",
    1161: "the connection was lost",
    1180: "COMMIT failed",
    1203: _BUSY,
    1205: "another session holds a lock that we need",
    1206: "its lock table is full",
    1226: _BUSY,
    1290: _READ_ONLY,
    1317: _ENDED,
    1637: "it has too many transactions",
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1927: _ENDED,
    3169: _ENDED,
    3989: _READ_ONLY,
    4031: "the session was idle too long, and the server ended it",
}
_LATE = {
    1969: "the statement took longer than max_statement_time",
    3024: "the statement took longer than max_execution_time",
}
_TWICE, _NULL, _LONG = "duplicate key", "NULL in a column that is NOT NULL", "a value is too long"
_RANGE, _TYPE, _GONE = (
    "a number is out of range",
    "a value does not fit the column's type",
    "the table or a column no longer exists",
)
_REFUSED = {
    1022: _TWICE,
    1044: _LACKS,
    1048: _NULL,
    1054: _GONE,
    1062: _TWICE,
    1118: "a row is larger than the server allows",
    1136: _GONE,
    1142: _LACKS,
    1143: _LACKS,
    1146: _GONE,
    1153: "a row is larger than its max_allowed_packet",
    1216: "foreign key violation",
    1227: _LACKS,
    1261: "a row has too few values",
    1262: "a row has too many values",
    1263: _NULL,
    1264: _RANGE,
    1265: "a value would be truncated",
    1292: _TYPE,
    1301: "a value is larger than its max_allowed_packet",
    1364: "a column without a default has no value",
    1366: _TYPE,
    1367: _TYPE,
    1370: _LACKS,
    1406: _LONG,
    1452: "foreign key violation",
    1586: _TWICE,
    1644: "a trigger raised an error",
    1665: "binlog_format is STATEMENT, which does not allow writes under READ COMMITTED",
    1690: _RANGE,
    3140: "a text is not valid JSON",
    3819: "check constraint violation",
    4025: "check constraint violation",
}
