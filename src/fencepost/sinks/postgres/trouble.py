"""What PostgreSQL's errors mean: it is silent, it lost to another transaction, or it refuses the rows.

Never lets an error of psycopg out: the server puts values into its texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import errors

from fencepost.sinks.database import Conflict, Denied, NotAllowed, RowsRefused, Silent
from fencepost.sinks.postgres.names import quoted


class KeyTwice(RowsRefused):
    """One statement would write two rows of one key."""


@contextmanager
def explained(columns: Sequence[str] = ()) -> Iterator[None]:
    """Turn psycopg's errors into ours; one about one of these columns names it."""
    try:
        yield
    except psycopg.Error as error:
        raise _explained(error, columns) from None


def _explained(error: psycopg.Error, columns: Sequence[str]) -> Exception:
    state = error.sqlstate or ""
    if state in {"40001", "40P01"}:
        return Conflict(words(error))
    if not state and any(words in str(error) for words in _DENIED):
        return Denied("it refused the login, or has no such database")
    if not state or state[:2] in {"08", "25", "53", "57", "58", "XX"} or state == "55P03":
        return Silent(_SILENT.get(state) or _SILENT.get(state[:2]) or f"it failed ({words(error)})")
    if state == "21000":
        return KeyTwice("the same key twice")
    details = [
        f"{what} {quoted(name)}"
        for what, name in (
            ("table", error.diag.table_name),
            ("column", error.diag.column_name or _column_of_copy(error, columns)),
            ("constraint", error.diag.constraint_name),
        )
        if name
    ]
    kind = NotAllowed if state == "42501" else RowsRefused
    return kind(", ".join([words(error), *details]))


def words(error: psycopg.Error) -> str:
    """PostgreSQL's own name of the condition, in words: NumericValueOutOfRange → numeric value out of range."""
    if not error.sqlstate:
        return "the connection was lost or could not be made"
    if error.sqlstate in _REFUSED:
        return _REFUSED[error.sqlstate]
    try:
        name = errors.lookup(error.sqlstate).__name__
    except KeyError:
        return f"SQLSTATE {error.sqlstate}"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _column_of_copy(error: psycopg.Error, columns: Sequence[str]) -> str | None:
    """The column in the context of a failed COPY. What stands there may also be a row, so only a known name is one."""
    found = re.search(r"^COPY .*?, line \d+, column (.+?): ", error.diag.context or "", re.MULTILINE)
    return found[1] if found and found[1] in columns else None


_DENIED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
)
"""What libpq says when it could connect and was sent away; it has no code for it. A server that speaks another language
is taken for a silent one."""
_REFUSED = {
    "42501": "this user lacks a right",
    "42P01": "it is gone, or another table that it needs",
    "P0001": "a trigger or a function raised an error",
}
READ_ONLY = "it is read-only (a standby?)"
_SILENT = {
    "": "the connection was lost or could not be made",
    "08": "the connection was lost",
    "25006": READ_ONLY,
    "25P03": "the transaction lay open too long, and it ended the session",
    "53100": "its disk is full",
    "53300": "it has too many connections",
    "53": "it is out of resources",
    "55P03": "another session holds a lock that we need",
    "57014": "the statement took longer than statement_timeout, or was cancelled",
    "57": "it is shutting down or starting up",
    "58": "its disk failed",
    "XX": "it reports damage",
}
