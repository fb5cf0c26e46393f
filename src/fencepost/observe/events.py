"""What happens to a job, as values: the same words in the journal, the log and callbacks.

Never holds a row's value or a secret: only names, numbers, times and our own error texts.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final


class Kind(enum.StrEnum):
    """Every kind of event."""

    SPAWNED = "spawned"
    """The supervisor started a driver process."""
    STARTED = "started"
    """A driver took over the checkpoint and has its writer number."""
    RECOVERED = "recovered"
    OPENED = "opened"
    """The driver has an epoch's rows."""
    PRE_COMMITTED = "pre_committed"
    VOTED = "voted"
    DECIDED = "decided"
    COMMITTED = "committed"
    COMPLETE = "complete"
    TRIED_AGAIN = "tried_again"
    """An epoch failed before its decision and is retried by the same query."""
    FAILED = "failed"
    RESTARTED = "restarted"
    """The query is restarted in the same process, or the driver in a new one."""
    WARM = "warm"
    """The standby is ready to take over."""
    TOOK_OVER = "took_over"
    """The standby was told to take over."""
    FENCED = "fenced"
    STOPPED = "stopped"
    GAVE_UP = "gave_up"
    """The restart budget is spent, or the failure is final."""
    DIED = "died"
    """The driver process died without reporting an error, or was killed because it hung."""
    CALLBACK_FAILED = "callback_failed"
    ABORTED = "aborted"
    """Rows in a sink that no decision names were undone."""
    ASKED = "asked"
    """Somebody asked for an action on the pages of `fencepost ui`."""


DELETING: Final = "The checkpoint is being deleted."
"""What a job says when it stops and its checkpoint is not to outlive it; if it stays after all, it stops once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a job. Whatever does not apply is None."""

    kind: Kind
    job: str
    at: str
    """UTC, as in the ledger."""
    pid: int
    writer: int | None = None
    epoch: int | None = None
    sink: str | None = None
    seconds: float | None = None
    """How long the step took, or how long the wait will be."""
    rows: int | None = None
    units: int | None = None
    attempt: int | None = None
    supervisor: int | None = None
    """For a start: the process that will restart it."""
    process: int | None = None
    """The process that the event is about, if another one reports it."""
    code: str | None = None
    reason: str | None = None
    """For a failure: the word for its kind, see errors.py."""
    what: str | None = None
    safe: str | None = None
    next: str | None = None
    again: bool | None = None
    """For a complete epoch: it may have been reported before."""
    dead: bool | None = None
    """For a commit: its rows are dead letters."""

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON: everything that is not None."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}

    @property
    def line(self) -> str:
        """For the log: one line, with the same words."""
        facts = {k: v for k, v in self.plain.items() if k not in {"kind", "job", "at", "pid", "safe", "next"}}
        return f"job {self.job}: {self.kind} " + " ".join(f"{key}={value}" for key, value in facts.items())

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Event:
        """Read one back; keys from a later version are ignored."""
        datetime.fromisoformat(plain["at"])
        for name, value in plain.items():
            if name in _TYPES and not isinstance(value, _TYPES[name]):
                raise TypeError(name)
        return cls(**{**{key: value for key, value in plain.items() if key in _FIELDS}, "kind": Kind(plain["kind"])})


_FIELDS = tuple(field.name for field in fields(Event))
_WORDS = {"int": int, "float": (int, float), "str": str, "bool": bool}
_TYPES: Mapping[str, Any] = {f.name: _WORDS[str(f.type).split(" ")[0]] for f in fields(Event) if f.name != "kind"}


class TraceIds:
    """The ids of traces, for the events of one driver in their order: the same for whoever knows the events.

    Of an epoch, by its driver and number; of a recovery, by its driver. So log lines have the id of a trace that
    another process makes later.
    """

    def __init__(self, checkpoint: str) -> None:
        """`checkpoint` is its short name, see registry.py."""
        self._checkpoint = checkpoint
        self.recovers = False
        """Did the last event belong to a recovery?"""
        self._begins = False

    def of(self, event: Event) -> str | None:
        """32 hexadecimal digits, or None for an event that belongs to neither."""
        if event.kind is Kind.STARTED:
            self._begins = True
        self.recovers = self._begins or event.kind is Kind.RECOVERED or bool(event.again)
        if event.kind is Kind.RECOVERED or event.kind in _ENDS:
            self._begins = False
        if event.kind in _OUTSIDE or not (self.recovers or event.epoch is not None):
            return None
        return self._id(event.writer, None if self.recovers else event.epoch)

    def _id(self, writer: int | None, epoch: int | None) -> str:
        return hashlib.sha256(f"{self._checkpoint} {writer} {epoch}".encode()).hexdigest()[:32]


_ENDS: Final = {Kind.FAILED, Kind.FENCED, Kind.STOPPED}
_OF_SUPERVISORS: Final = {Kind.SPAWNED, Kind.WARM, Kind.TOOK_OVER, Kind.DIED, Kind.GAVE_UP, Kind.RESTARTED}
_OUTSIDE: Final = {*_OF_SUPERVISORS, Kind.STOPPED, Kind.CALLBACK_FAILED}
"""Also the end of a driver, and what users' functions do after an epoch."""
