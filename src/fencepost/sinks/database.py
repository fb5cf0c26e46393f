"""A connection to a database, as SQL sinks use it: one transaction at a time, an epoch row, and three kinds of trouble.

Never lets an error of a client library out: those quote rows.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, ClassVar, Self
from weakref import WeakSet, WeakValueDictionary

from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.sinks.contract import Owner, Session
from fencepost.sinks.marks import Mark, Seen

EPOCH_TABLE = "fencepost_epoch"
"""job, sink, lineage, generation, epoch, handle, writer; key (job, sink)."""
TARGET_TABLE = "fencepost_target"
"""id: one row, the target's identity."""


class Silent(Exception):
    """The target does not answer now: locked, full, unreachable. Says nothing about what it holds."""


class Denied(Silent):
    """The target refused the login, or has no such database: asking again will not help."""


class Conflict(Silent):
    """The target ended our transaction for the sake of another one (a deadlock): trying again is right."""


class RowsRefused(Exception):
    """The target answered, and does not take the rows. The text names constraints and columns, never a value."""


class NotAllowed(RowsRefused):
    """The target answered that this user has no right to it."""


@dataclass(slots=True)
class Voting:
    """The open transaction of a vote: whose it is, and what is in it."""

    lineage: str
    writer: WriterNumber
    epoch: Epoch
    handles: dict[str, str] = field(default_factory=dict)
    """By sink, the ids of what it applied."""


class Database(ABC):
    """One connection to the target with at most one open transaction; the part that each product does differently.

    Every method raises `Silent` or `RowsRefused` and never a driver's own error: those may quote a row.
    """

    voting: Voting | None = None
    epochs = EPOCH_TABLE
    """As it stands in a statement."""
    _open: ClassVar[WeakValueDictionary[tuple[Any, ...], Any]] = WeakValueDictionary()

    def __init__(self) -> None:
        self.lock = RLock()
        self.users: WeakSet[Session] = WeakSet()

    @classmethod
    def shared(cls, user: Session, job: str, *place: Any) -> Self:
        """The job's one connection to this place in this process: its sinks there vote and commit together."""
        key = (os.getpid(), cls, job, *place)
        database: Self | None = cls._open.get(key)
        if database is None:
            database = cls._open[key] = cls(*place)
        database.users.add(user)
        return database

    def leave(self, user: Session) -> None:
        """One session less; with the last one the connection goes."""
        self.users.discard(user)
        if not self.users:
            self.voting = None
            self.forget()
            self.drop()

    def literal(self, text: str) -> str:
        """As a person would have to write it."""
        return "'" + text.replace("'", "''") + "'"

    @abstractmethod
    def forget(self) -> None:
        """The next start looks at the target anew, and the ledger judges what it finds."""

    def take_over(self, owner: Owner) -> None:
        """End what sessions of older writers hold at the server."""

    @abstractmethod
    def look(self) -> None:
        """Connect if need be and open a transaction for reading: an older writer that sleeps must not be in the way."""

    @abstractmethod
    def begin(self, *, patient: bool) -> None:
        """Connect if need be and open a transaction that no other writer of the epoch row can pass."""

    def check_all(self) -> None:
        """Have everything checked now that would be checked at COMMIT only: after the decision it is too late."""

    @abstractmethod
    def end(self) -> None:
        """COMMIT. An error of it is `Silent`: whether it happened is unknown."""

    @abstractmethod
    def undo(self) -> None:
        """ROLLBACK, if anything is open. Must not raise."""

    @abstractmethod
    def drop(self) -> None:
        """Throw the connection away, so that the next question goes to the target. Must not raise."""

    @abstractmethod
    def mark(self, job: str, sink: str) -> Mark | None:
        """Read the epoch row, inside the transaction."""

    @abstractmethod
    def set_mark(self, job: str, sink: str, mark: Mark) -> None:
        """Write the epoch row, inside the transaction."""

    @abstractmethod
    def peek(self, job: str, sink: str, table: str) -> Seen:
        """Look through a connection of its own that cannot write: this one may hold a vote. Makes nothing."""
