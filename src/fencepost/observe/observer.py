"""Who is told what happens to a job: its journal, the log, and the user's callbacks.

Never changes anything: a callback that raises is noted, and the job goes on as if it had not.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from fencepost.errors import Fenced, FencepostError
from fencepost.observe import journal
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Journal
from fencepost.supervise.reasons import Reason
from fencepost.times import now

Callback = Callable[[Event], object]

log = logging.getLogger("fencepost.events")
LOUD = {Kind.TRIED_AGAIN, Kind.RESTARTED, Kind.CALLBACK_FAILED}
"""What nobody else says: failures are raised, and printed by whoever catches them."""


class Observer:
    """Of one job."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._journal: Journal | None = None
        self._callbacks: list[tuple[frozenset[Kind], Callback]] = []
        self._writer: int | None = None
        self._failed: FencepostError | None = None
        self._here = threading.local()

    def call(self, callback: Callback, *kinds: Kind) -> None:
        """Call a function of the user's for events of these kinds."""
        self._callbacks.append((frozenset(kinds), callback))

    def write_to(self, checkpoint: str, writer: int | None = None) -> None:
        """The journal's checkpoint is known, and in time the driver's number."""
        journal.begin(checkpoint)
        self._journal = Journal(checkpoint)
        self._writer = writer

    def note(self, kind: Kind, error: FencepostError | None = None, **facts: Any) -> None:
        """Something happened."""
        if error is not None:
            told = {"code": error.code, "what": error.what, "safe": error.safe, "next": error.next}
            told["reason"] = Reason.of(error).word
            facts = {**told, "epoch": error.where.epoch, "sink": error.where.sink, **facts}
        if (took := facts.get("seconds")) is not None:
            facts["seconds"] = round(took, 6)
        event = Event(kind=kind, job=self._job, at=now(), pid=os.getpid(), **{"writer": self._writer, **facts})
        if self._journal is not None:
            self._journal.note(event)
        level = logging.WARNING if kind in LOUD else logging.DEBUG
        if log.isEnabledFor(level):
            log.log(level, "%s", event.line, extra={"fencepost": event.plain})
        for kinds, callback in self._callbacks:
            if kind in kinds:
                self._tell(callback, event)

    def note_failure(self, error: FencepostError) -> None:
        """A query, or its start, failed; once for each error, however many layers it passes."""
        if error is not self._failed:
            self._failed = error
            self.note(Kind.FENCED if isinstance(error, Fenced) else Kind.FAILED, error)

    def _tell(self, callback: Callback, event: Event) -> None:
        self._here.telling = True
        try:
            callback(event)
        except Exception as error:  # noqa: BLE001 - the user's own; it must change nothing
            name = getattr(callback, "__qualname__", type(callback).__name__)
            # By type only: a message may quote a row.
            self.note(Kind.CALLBACK_FAILED, epoch=event.epoch, what=f"{name} raised {type(error).__name__}")
        finally:
            self._here.telling = False

    @property
    def is_telling(self) -> bool:
        """Is this thread in a callback? It is then the one that an end would have to wait for."""
        return getattr(self._here, "telling", False)
