"""Keeps one job running in its process: restarts the query after a failure, as its restart strategy says.

    failed epoch, not decided    retried at once, as many times in a row as the checkpoint's options allow
    query ended                  restarted after the strategy's wait; recovery runs before each start
    fenced, refused, operator    final
    JVM gone                     only a new process helps: that is the supervisor's job

Never restarts what somebody asked to stop.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from fencepost.config import Failures, NoRestart, Strategy
from fencepost.errors import FencepostError, GaveUp, Policy, Reason, Tolerance
from fencepost.observe.commands import Wish
from fencepost.observe.events import Kind
from fencepost.observe.journal import Observer


class Runs(Protocol):
    """A started query."""

    @property
    def can_go_on(self) -> bool:
        """Can it be restarted in this process?"""

    def wait(self, seconds: float) -> bool:
        """Has it ended?"""

    def wish(self) -> Wish | None:
        """Stop or cancel, if somebody asked for it."""

    def stop(self) -> None:
        """Let the epoch in flight finish, then end it."""

    def abort(self) -> None:
        """End it now."""

    def end(self) -> None:
        """Clean up after it ended; raise what ended it."""


class Keeper:
    """Runs a job until it ends by itself, is stopped, or may not be restarted."""

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
        show: Callable[[Any], None] = lambda run: None,
    ) -> None:
        self._start = start
        self._cancel = cancel
        self._stop = stop
        self._observer = observer
        self._strategy = strategy or NoRestart()
        self._tolerance = tolerance
        self._failures = failures
        """The failures that count, including those of earlier processes."""
        self._tell = tell
        self._wish = wish
        """What somebody asks for between two starts."""
        self._show = show

    def run(self) -> None:
        """Return when the job is over; raise the failure that ended it for good."""
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
            else:
                self._show(run)
        if run.can_go_on:
            self._show(run)
        run.end()

    def _wait_or_raise(self, error: FencepostError, *, can_go_on: bool) -> None:
        """The query failed: return when it is time to restart it, or raise."""
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
        """Wait for the next start; a stop in the meantime just means not starting again."""
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
    """No more restarts: what failed, how often, and whether the data is safe."""
    what = f"Gave up after {failures} failures: {strategy.word} allows no more restarts. Last failure: {last}"
    return GaveUp("restarts_spent", what, **told)


# --- signals: SIGTERM and SIGINT ask for a stop, with a deadline. A handler never ends anything itself.
#
# first signal      the epoch in flight is finished or dropped, then the job ends
# second signal     KeyboardInterrupt: at once
# after 30 s        as if a second signal had come: a silent sink must not hold up the end

GRACE_S: Final = 30
CANCEL_S: Final = 5


def end_within(seconds: int) -> None:
    """Start the deadline, as if a first signal had come."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        signal.alarm(seconds)


@contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a clean stop; only the main thread may install handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        signal.alarm(GRACE_S)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
