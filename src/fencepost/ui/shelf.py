"""The jobs that are shown: those that were started on this machine, and the checkpoints that were named.

A store that does not answer is asked again, but not by every page at once; until it answers, what was last known is
shown, with the time since when it is silent. Remote stores are asked side by side, each in a thread of its own: nobody
waits for the others' stores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from fencepost.errors import UNCHANGED, BadConfig, FencepostError, Retryable, Where
from fencepost.observe import registry
from fencepost.observe.archive import JobArchive, Summary
from fencepost.store import Place, RemotePath, place
from fencepost.store.refusal import unreadable
from fencepost.store.retry import Aside, at_most
from fencepost.ui.targets import Targets

PATIENCE_S: Final = 3.0
"""For a remote store: somebody is looking at an empty page."""
SHORT_S: Final = 0.5
"""The same if something is known that can be shown meanwhile."""
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

    def __init__(self, key: str, name: str, where: Place, targets: Targets | None = None) -> None:
        self.key = key
        self.targets = targets
        """Its sinks, if its file was named."""
        self.archive = JobArchive(where)
        self._change = threading.Lock()
        self._last = Glance(key=key, name=name, checkpoint=str(self.archive.root))
        self._next = 0.0
        self._aside = Aside(f"look-{key}", PATIENCE_S) if isinstance(self.archive.root, RemotePath) else None
        self._asked = 0.0
        """When the look began that is under way."""
        self._look: Future[Glance] | None = None

    @property
    def is_remote(self) -> bool:
        """Is its checkpoint on another machine?"""
        return self._aside is not None

    @property
    def name(self) -> str:
        """As it was last known."""
        return self._last.name

    def begin(self) -> None:
        """Ask a remote store, unless it was asked a moment ago; `glance` has the answer."""
        with self._change:
            if self._aside is None or time.monotonic() < self._next:
                return
            if self._look is None or self._look.done():
                self._asked = time.time()
                self._look = self._aside.begin(self._read)

    def glance(self) -> Glance:
        """What is known now; never raises, and never waits long for a store of which something is known."""
        if self._aside is None:
            with self._change:
                return self._read()
        self.begin()
        look, last = self._look, self._last
        if look is not None:
            is_known = last.summary is not None or last.problem is not None
            with suppress(TimeoutError):
                look.result(max(0.0, self._asked + (SHORT_S if is_known else PATIENCE_S) - time.time()))
        last = self._last
        if look is None or look.done() or time.time() - self._asked < PATIENCE_S:
            return last if last.summary or last.problem else replace(last, problem=_slow(last), since=self._asked)
        return replace(last, problem=last.problem or _slow(last), since=last.since or self._asked)

    def _read(self) -> Glance:
        """By one thread at a time: of whoever holds the lock, or the one of our own."""
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


def _slow(last: Glance) -> Retryable:
    return Retryable(
        "store_slow",
        "The checkpoint's store has not answered yet.",
        where=Where(path=last.checkpoint),
        safe="Nothing was changed; the job does not need this page.",
        next="Wait: it is asked again and again. `fencepost status` says more if it stays silent.",
    )


class Shelf:
    """All of them, by key. A key is made of hexadecimal digits: no name and no path is ever part of an address."""

    def __init__(
        self, named: Sequence[Place] = (), *, registered: bool = True, targets: Mapping[str, Targets] | None = None
    ) -> None:
        self._named = [place(one) for one in named]
        self._targets = targets or {}
        """By key, of the jobs whose files were named."""
        self._registered = registered
        self._change = threading.Lock()
        self._jobs: dict[str, ShownJob] = {}

    @property
    def asks_sinks(self) -> bool:
        """Was the file of any job named?"""
        return bool(self._targets)

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
                    found[key] = self._jobs.get(key) or ShownJob(key, name, where, self._targets.get(key))
            # One whose folder is gone stays, as long as somebody has it open: its page says so.
            self._jobs = {**self._jobs, **found}
            return list(found.values())

    def glances(self) -> list[Glance]:
        """A look at each; remote stores are asked side by side, while those of this machine are read."""
        jobs = self.jobs()
        for job in jobs:
            job.begin()
        seen = {job.key: job.glance() for job in sorted(jobs, key=lambda job: job.is_remote)}
        return [seen[job.key] for job in jobs]

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
