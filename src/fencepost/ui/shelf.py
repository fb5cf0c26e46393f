"""The jobs that are shown: those that were started on this machine, and the checkpoints that were named.

A store that does not answer is asked again, but not by every page at once; until it answers, what was last known is
shown, with the time since when it is silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.errors import UNCHANGED, BadConfig, FencepostError, Retryable
from fencepost.observe import registry
from fencepost.observe.archive import JobArchive, Summary
from fencepost.store import Place, place
from fencepost.store.refusal import unreadable
from fencepost.store.retry import at_most

PATIENCE_S: Final = 3.0
"""For a remote store: somebody is looking at an empty page."""
FRESH_S: Final = 0.8
"""Pages that ask within this time get the same answer."""
SILENT_S: Final = 5.0
"""A silent store is left alone for as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What is known about a job right now."""

    key: str
    name: str
    checkpoint: str
    summary: Summary | None = None
    at: float = 0.0
    """When that was read."""
    problem: FencepostError | None = None
    """Why it cannot be read now."""
    since: float | None = None
    """Since when that is so."""


class ShownJob:
    """One job: its archive, and what was last known."""

    def __init__(self, key: str, name: str, where: Place) -> None:
        self.key = key
        self.archive = JobArchive(where)
        self._change = threading.Lock()
        self._last = Glance(key=key, name=name, checkpoint=str(where))
        self._next = 0.0

    @property
    def name(self) -> str:
        """As it was last known."""
        return self._last.name

    def glance(self) -> Glance:
        """What is known now; never raises."""
        with self._change:
            if time.monotonic() < self._next:
                return self._last
            try:
                with at_most(PATIENCE_S):
                    found = self.archive.summary()
            except (FencepostError, OSError) as error:
                told = error if isinstance(error, FencepostError) else unreadable(error, str(self.archive.root))
                self._last = replace(self._last, problem=told, since=self._last.since or time.time())
                self._next = time.monotonic() + (SILENT_S if isinstance(told, Retryable) else FRESH_S)
            else:
                now = time.time()
                self._last = replace(self._last, name=found.health.job, summary=found, at=now, problem=None, since=None)
                self._next = time.monotonic() + FRESH_S
            return self._last

    def known(self) -> Glance:
        """The same, but raises what is wrong if nothing was ever known."""
        found = self.glance()
        if found.summary is None and found.problem is not None:
            raise found.problem
        return found


class Shelf:
    """All of them, by key. A key is made of hexadecimal digits: no name and no path is ever part of an address."""

    def __init__(self, named: Sequence[Place] = (), *, registered: bool = True) -> None:
        self._named = [place(one) for one in named]
        self._registered = registered
        self._change = threading.Lock()
        self._jobs: dict[str, ShownJob] = {}

    def jobs(self) -> list[ShownJob]:
        """The named ones first, then those of this machine, the newest start first."""
        wanted = [(registry.key_of(one), one.name, one) for one in self._named]
        if self._registered:
            for noted in registry.everything():
                wanted.append((registry.key_of(noted.checkpoint), noted.name, place(noted.checkpoint)))
        with self._change:
            found = {}
            for key, name, where in wanted:
                if key not in found:
                    found[key] = self._jobs.get(key) or ShownJob(key, name, where)
            # One whose folder is gone stays, as long as somebody has it open: its page says so.
            self._jobs = {**self._jobs, **found}
            return list(found.values())

    def job(self, key: str) -> ShownJob:
        """The one of this key."""
        if key not in self._jobs:
            self.jobs()
        found = self._jobs.get(key)
        if found is None:
            raise BadConfig(
                "unknown_job",
                "No job of this machine has this address.",
                safe=UNCHANGED,
                next="Choose one from the list of jobs, or name its checkpoint: fencepost ui CHECKPOINT.",
            )
        return found
