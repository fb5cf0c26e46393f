"""Why a server refused a connection, as SQLSTATE: that is the same in every language.

libpq parses the code while it connects, and shows it if it is told to before (PQERRORS_SQLSTATE), which psycopg has no
call for. So this is a second attempt, made only where the text of the first says nothing to us. Never raises: where the
code cannot be had, there is none.
"""

from __future__ import annotations

import ctypes
import re
import select
import sys
import time
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import PGconn, PollingStatus

SQLSTATE_ONLY = 3
"""PQERRORS_SQLSTATE, since libpq 12."""
PATIENCE_S = 10.0


def states(conninfo: str) -> set[str]:
    """Connect once more and return the codes with which it was refused, one per host; empty if nobody says any."""
    with suppress(psycopg.Error, OSError, AttributeError):
        connection: Any = PGconn.connect_start(conninfo.encode())
        try:
            say_codes = _libpq().PQsetErrorVerbosity
            say_codes.argtypes, say_codes.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_int
            say_codes(connection.pgconn_ptr, SQLSTATE_ONLY)
            _finish(connection)
            return set(re.findall(r": +([0-9A-Z]{5})$", connection.get_error_message(), re.MULTILINE))
        finally:
            connection.finish()
    return set()


def _libpq() -> Any:
    """The one that psycopg itself uses: another one would not know its connections."""
    module = sys.modules[PGconn.__module__]
    by_ctypes = getattr(module, "impl", None)  # psycopg without its extension
    return by_ctypes.pq if by_ctypes else ctypes.CDLL(str(module.__file__))  # finds what the extension is linked to


def _finish(connection: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while (status := connection.connect_poll()) in (PollingStatus.READING, PollingStatus.WRITING):
        reads = [connection.socket] if status == PollingStatus.READING else []
        writes = [connection.socket] if status == PollingStatus.WRITING else []
        if not any(select.select(reads, writes, [], max(0.0, until - time.monotonic()))):
            return
