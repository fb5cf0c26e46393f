"""What the errors of MySQL and MariaDB mean to us.

Never passes on a text of the server: it quotes rows. What is taken out of one is the name of a column that we know, or
of a constraint, from a place where no value can stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pymysql

from fencepost.sinks.database import Conflict, Denied, NotAllowed, RowsRefused, Silent
from fencepost.sinks.mysql.names import quoted


@contextmanager
def explained(columns: Sequence[str] = ()) -> Iterator[None]:
    """Turn PyMySQL's errors into ours; one about one of these columns names it."""
    try:
        yield
    except pymysql.Error as error:
        raise meaning(code_of(error), str(error.args[-1]) if error.args else "", columns) from None
    except (OSError, RuntimeError, LookupError, AssertionError):
        # A server that does not speak the protocol, or asks for a file of ours, which it never gets.
        raise Silent("its answer was not understood") from None


def code_of(error: pymysql.Error) -> int:
    """Its number; 0 if PyMySQL made it up."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def meaning(code: int, text: str, columns: Sequence[str] = ()) -> Exception:
    """Ours, for an error or a warning of the server."""
    if code in _CONFLICTS:
        return Conflict("it ended our transaction for the sake of another one")
    if code in _DENIED:
        return Denied(_DENIED[code])
    if code in _SILENT or code == 0 or 2000 <= code < 3000:
        return Silent(_SILENT.get(code, "the connection was lost or could not be made"))
    named = _column_in(text, columns) or _constraint_in(text)
    words = _REFUSED.get(code, f"error {code}") + (f", {named}" if named else "")
    return NotAllowed(words) if code in _RIGHTS else RowsRefused(words)


def _column_in(text: str, columns: Sequence[str]) -> str | None:
    """Behind the value, if there is one: "… for column `shop`.`orders`.`v` at row 1"."""
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
_RIGHTS = {1044, 1142, 1143, 1227, 1370}
_LACKS, _LOGIN = "this user lacks a right", "it refused the login"
_DENIED = {1045: _LOGIN, 1698: _LOGIN, 1049: "there is no such database"}
_FULL, _READ_ONLY, _ENDING = "its disk is full", "it is read-only (a replica?)", "it is shutting down"
_BUSY, _ENDED = "it has too many connections", "it ended the statement or the session"
_SILENT = {
    1021: _FULL,
    1030: "its storage failed",
    1037: "it is out of memory",
    1038: "it is out of memory",
    1040: _BUSY,
    1041: "it is out of memory",
    1045: _LOGIN,
    1047: "it is not ready for statements",
    1049: "there is no such database",
    1053: _ENDING,
    1105: "it reports an unknown error",
    1114: _FULL,
    1129: _LOGIN,
    1130: _LOGIN,
    1158: "the connection was lost",
    1159: "the connection was lost",
    1160: "the connection was lost",
    1161: "the connection was lost",
    1180: "COMMIT failed",
    1203: _BUSY,
    1205: "another session holds a lock that we need",
    1206: "its table of locks is full",
    1226: _BUSY,
    1290: _READ_ONLY,
    1317: _ENDED,
    1637: "it has too many transactions",
    1698: _LOGIN,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1927: _ENDED,
    1969: "the statement took longer than max_statement_time",
    3024: "the statement took longer than max_execution_time",
    3169: _ENDED,
    3989: _READ_ONLY,
    4031: "the session was idle for too long, and it ended it",
}
_TWICE, _NULL, _LONG = "duplicate key", "NULL in a column that is NOT NULL", "a value is too long"
_RANGE, _TYPE, _GONE = "a number is out of range", "a value is not of the column's type", "it is gone, or a part of it"
_REFUSED = {
    1022: _TWICE,
    1044: _LACKS,
    1048: _NULL,
    1054: _GONE,
    1062: _TWICE,
    1118: "a row is larger than the server takes",
    1136: _GONE,
    1142: _LACKS,
    1143: _LACKS,
    1146: _GONE,
    1153: "a row is larger than its max_allowed_packet",
    1216: "a foreign key",
    1227: _LACKS,
    1261: "a row has too few values",
    1262: "a row has too many values",
    1263: _NULL,
    1264: _RANGE,
    1265: "a value would be cut",
    1292: _TYPE,
    1301: "a value is larger than its max_allowed_packet",
    1364: "a column without a default is missing",
    1366: _TYPE,
    1367: _TYPE,
    1370: _LACKS,
    1406: _LONG,
    1452: "a foreign key",
    1586: _TWICE,
    1644: "a trigger raised an error",
    1665: "binlog_format is STATEMENT, with which it takes no rows under READ COMMITTED",
    1690: _RANGE,
    3140: "a text is not JSON",
    3819: "a check",
    4025: "a check",
}
