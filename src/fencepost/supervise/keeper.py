"""Keeps one job running in its process: starts the query again after a failure, as its strategy says.

    failed epoch, not decided    tried again at once, so often in a row as the checkpoint's options bear
    query ended                  after the strategy's wait; recovery runs before each start
    fenced, refused, operator    final
    JVM gone                     only a new process helps: the supervisor's task

Never starts anything again that somebody asked to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from fencepost.errors import FencepostError, GaveUp
from fencepost.observe.events import Kind
from fencepost.observe.observer import Observer
from fencepost.observe.requests import Wish
from fencepost.signals import CANCEL_S, GRACE_S, end_within
from fencepost.supervise.reasons import Policy, Reason, Tolerance
from fencepost.supervise.strategies import Failures, NoRestart, Strategy


class Runs(Protocol):
    """A query that was started."""

    @property
    def can_go_on(self) -> bool:
        """Can it be started again in this process?"""

    def wait(self, seconds: float) -> bool:
        """Has it ended?"""

    def wish(self) -> Wish | None:
        """What somebody asks of it."""

    def stop(self) -> None:
        """Let the epoch in flight finish, then end it."""

    def abort(self) -> None:
        """End it now."""

    def end(self) -> None:
        """It is over: raise what ended it."""


class Keeper:
    """Runs a job until it ends by itself, is stopped, or may not be started again."""

    def __init__(
        self,
        start: Callable[[], Runs],
        cancel: Callable[[], None],
        stop: threading.Event,
        observer: Observer,
        *,
        strategy: Strategy | None,
        tolerance: Tolerance,
        failures: Failures = (),
        tell: Callable[[FencepostError], None] = lambda error: None,
        wish: Callable[[], Wish | None] = lambda: None,
    ) -> None:
        self._start = start
        self._cancel = cancel
        self._stop = stop
        self._observer = observer
        self._strategy = strategy or NoRestart()
        self._tolerance = tolerance
        self._failures = failures
        """Those that count, also of processes before this one."""
        self._tell = tell
        self._wish = wish
        """What somebody asks between two starts."""

    def run(self) -> None:
        """Return when the job is over; raise what ended it for good."""
        run: Runs | None = None
        while not self._stop.is_set():
            try:
                run = self._start()
                self._watch(run)
            except FencepostError as error:
                self._wait_or_raise(error, can_go_on=run is None or run.can_go_on)
            except KeyboardInterrupt:
                if run is not None:
                    run.abort()
                raise
            else:
                return

    def _watch(self, run: Runs) -> None:
        while not run.wait(0.1):
            wish = run.wish()
            if wish == "cancel":
                self._stop.set()
                end_within(CANCEL_S)
                self._cancel()
            elif self._stop.is_set() or wish == "stop":
                if not self._stop.is_set():
                    self._stop.set()
                    end_within(GRACE_S)
                run.stop()
        run.end()

    def _wait_or_raise(self, error: FencepostError, *, can_go_on: bool) -> None:
        """The query failed: return when it is time to start it again."""
        reason = Reason.of(error)
        policy = reason.policy
        if policy is Policy.FINAL or self._stop.is_set() or not can_go_on or reason is Reason.ENGINE_LOST:
            raise error
        if self._tolerance.bears(error):
            self._observer.note(Kind.RESTARTED, error, attempt=self._tolerance.failures, seconds=0.0)
            return
        if isinstance(self._strategy, NoRestart):
            raise error
        self._failures = self._strategy.remember(self._failures, time.time())
        self._tell(error)
        wait = self._strategy.wait(self._failures)
        if wait is None:
            told = {"where": error.where, "safe": error.safe, "next": error.next}
            gave_up = spent(f"[{error.code}] {error.what}", self._strategy, len(self._failures), **told)
            self._observer.note(Kind.GAVE_UP, gave_up)
            raise gave_up from error
        self._observer.note(Kind.RESTARTED, error, attempt=len(self._failures), seconds=wait)
        self._sleep(wait)

    def _sleep(self, seconds: float) -> None:
        """Nothing runs; whoever is asked to end now has only to stay away."""
        until = time.monotonic() + seconds
        while not self._stop.wait(min(0.1, max(0.0, until - time.monotonic()))):
            if (wish := self._wish()) is not None:
                self._stop.set()
                if wish == "cancel":
                    self._cancel()
            elif time.monotonic() >= until:
                return
        self._observer.note(Kind.STOPPED)


def spent(last: str, strategy: Strategy, failures: int, **told: Any) -> GaveUp:
    """No more restarts: what failed, how often, and is the data safe."""
    what = f"{failures} failures, and {strategy.word} allows no more restarts. The last: {last}"
    return GaveUp("restarts_spent", what, **told)
