"""One connection by PyMySQL, set up so that nothing is cut, rounded or lost without a word.

Never opens a file that the server asks for: what LOAD DATA LOCAL gets are the rows, whatever name is asked.
"""

from __future__ import annotations

import configparser
import contextlib
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from pymysql import connections
from pymysql.constants import CLIENT, COMMAND, SERVER_STATUS

from fencepost.sinks.database import Silent
from fencepost.sinks.mysql.trouble import explained

IDLE_S = 60
"""How long the server keeps a session that says nothing. A transaction lies open between vote and decision, which takes
milliseconds; a driver that sleeps there must not hold its locks for ever. Between epochs we connect again."""
CONNECT_S = 10
PACKET = 256 * 1024
"""Bytes of rows in one packet."""

SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"  # else 0 becomes the next number of an AUTO_INCREMENT column
)
SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    # Rows come as fast as Spark makes them: while it loads, the server waits for the next one.
    f"SET SESSION time_zone = '+00:00', sql_notes = 1, wait_timeout = {IDLE_S}, net_read_timeout = 3600",
)
"""Whatever was set for the server: how our rows are read must not depend on it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is, and who asks. Pickled with the plan."""

    database: str
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    unix_socket: str | None = None
    tls: bool | str | None = None
    defaults_file: str | None = None


class Connection(connections.Connection):  # type: ignore[misc]  # PyMySQL has no types
    """PyMySQL's, with a way to load rows that no file is needed for."""

    infile = False
    """Does the server take LOAD DATA LOCAL?"""
    packet = 0
    """Bytes that it takes in one packet."""

    def _create_ssl_ctx(self, wanted: Any) -> ssl.SSLContext:
        """PyMySQL reads all authorities, which takes as long as ten logins, also where nobody is asked for one."""
        if wanted:
            return cast("ssl.SSLContext", super()._create_ssl_ctx(wanted))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    @property
    def in_transaction(self) -> bool:
        """As the server said last."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def load(self, statement: str, texts: Iterable[memoryview]) -> tuple[int, int]:
        """LOAD DATA LOCAL; how many rows went in, and how many warnings there were."""
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
            self._force_close()  # whatever came next, the server would take it for rows
            raise
        done = self._read_ok_packet()
        return done.affected_rows, done.warning_count


def connect(address: Address) -> Connection:
    """A connection that commits nothing by itself but what stands alone."""
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
            # Not local_infile=True: then PyMySQL itself would send any file that the server names.
            client_flag=CLIENT.LOCAL_FILES | CLIENT.FOUND_ROWS,
            defer_connect=True,
            **_tls(address),
        )
        with explained():
            connection.connect()
            _set_up(connection)
    except (ValueError, OSError, configparser.Error):
        # Of the defaults file or the file of authorities; the text may have a line of it.
        raise Silent("the defaults file or the file of tls= cannot be used") from None
    except BaseException:
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
        raise
    return connection


def _set_up(connection: Connection) -> None:
    connection._read_timeout = None  # only the handshake is bounded: a large INSERT takes its time
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
    """By itself PyMySQL uses TLS where the server offers it, and does not look whose it is."""
    if address.tls is None and not address.unix_socket:
        return {}
    if not address.tls:
        return {"ssl_disabled": True}
    context = ssl.create_default_context(cafile=address.tls if isinstance(address.tls, str) else None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # those that MySQL makes by itself are not strict
    return {"ssl": context}


_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_USER_TIMEOUT, 30_000),
)
