"""The parent of a driver process: starts it, feels its pulse, and starts it again when it dies or hangs.

    fencepost run job.py              one driver; a new one after the strategy's wait
    fencepost run job.py --standby    a second one is kept warm, and is told to go at once

No election service: two drivers may well live at once for a moment, and the ledger lets only the newer one decide.
The supervisor may be killed too: its driver goes on until another supervisor's driver fences it.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fencepost.errors import LATER, Where
from fencepost.observe import requests
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Journal
from fencepost.observe.pulse import Ear
from fencepost.supervise.keeper import spent
from fencepost.supervise.process import Process
from fencepost.supervise.reasons import Policy, Reason
from fencepost.supervise.strategies import ExponentialDelay, Failures, Strategy, parse
from fencepost.times import now

TICK_S: Final = 0.1
ASKS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Stop: from a service manager, from a person, from a terminal that was closed."""
QUIET_S: Final = 2.0
"""So long, at least, a new driver has the machine to itself; then a standby is made."""
IDLE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What `fencepost run` was told."""

    command: Sequence[str]
    """The file and its arguments."""
    restart: str | None = None
    """The command line's strategy, which goes before the job's own."""
    standby: bool = False
    deadline_s: float = 30.0
    """So long a driver may be without a pulse."""
    grace_s: float = 40.0
    """So long it may take to stop; a little longer than a driver gives itself."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a driver ended."""

    code: str
    """Of an error; none for an end in order."""
    reason: Reason
    text: str
    exit: int
    safe: str = LATER
    next: str = "Look for the cause above; then start the job again."


class Supervisor:
    """Runs a file's job until it ends in order, is stopped, or may not be started again."""

    def __init__(self, orders: Orders, say: Callable[[str], None]) -> None:
        self._orders = orders
        self._say = say
        self._strategy: Strategy = parse(orders.restart) if orders.restart else ExponentialDelay()
        self._failures: Failures = ()
        self._failed = 0
        """How often in all."""
        self._selector = selectors.DefaultSelector()
        self._standby: Process | None = None
        self._standby_from = float("inf")
        self._signals = 0
        self._job = Path(orders.command[0]).name
        self._journal: Journal | None = None
        self._ear: Ear | None = None
        self._checkpoint: str | None = None
        """Known once a driver came to its `job.run()`."""

    def run(self) -> int:
        """Supervise to the end; the exit code."""
        before = {number: signal.signal(number, self._asked) for number in ASKS}
        try:
            while True:
                ending = self._one_driver()
                if (code := self._code_after(ending)) is not None:
                    return code
        finally:
            self._drop_standby()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _one_driver(self) -> Ending:
        try:
            driver = self._takes_over() or self._spawn(standby=False)
        except OSError as error:
            return Ending("driver_died", Reason.DIED, f"No process can be started: {error.strerror}.", 1)
        try:
            return self._watch(driver)
        finally:
            self._end(driver)  # its JVM, too, before another driver needs the machine

    def _asked(self, number: int, _: Any) -> None:
        self._signals += 1

    # --- processes

    def _spawn(self, *, standby: bool) -> Process:
        process = Process(self._orders.command, "standby" if standby else "first" if self._orders.standby else "alone")
        self._selector.register(process.socket, selectors.EVENT_READ, process)
        self._say(f"{'standby' if standby else 'driver'} {process.pid} started")
        self._note(Kind.SPAWNED, process=process.pid, what="standby" if standby else "driver")
        if not standby:
            process.go(self._failures, self._orders.restart)
        return process

    def _takes_over(self) -> Process | None:
        """The standby, if it lives; it takes over now, and is as warm as it is."""
        process, self._standby = self._standby, None
        if process is None:
            return None
        if process.status is not None:
            self._end(process)
            return None
        process.go(self._failures, self._orders.restart)
        self._say(f"standby {process.pid} takes over{'' if process.is_warm else ', though it is not warm yet'}")
        self._note(Kind.TOOK_OVER, process=process.pid)
        self._standby_from = time.monotonic() + QUIET_S
        return process

    def _end(self, process: Process) -> None:
        if process.socket in self._selector.get_map():
            self._selector.unregister(process.socket)
        process.kill()

    def _drop_standby(self) -> None:
        if self._standby is not None:
            self._end(self._standby)
            self._standby = None

    def _is_settled(self, driver: Process) -> bool:
        """Has it finished an epoch? Until then it needs the machine; an idle one finishes none, and gets some time."""
        heard = self._ear.beats() if self._ear else []
        finished = any(beat.pid == driver.pid and beat.epoch is not None for beat in heard)
        return finished or time.monotonic() > self._standby_from + IDLE_S

    def _mind_standby(self, driver: Process) -> None:
        """Make one when it is time; one that died or hangs is made anew, later."""
        process = self._standby
        if process is not None and (process.status is not None or process.silent_s > self._orders.deadline_s):
            self._say(f"standby {process.pid} is gone; another is made in {self._orders.deadline_s:g} s")
            self._drop_standby()
            self._standby_from = time.monotonic() + self._orders.deadline_s
        wanted = self._orders.standby and not self._signals
        if wanted and self._standby is None and time.monotonic() > self._standby_from and self._is_settled(driver):
            try:
                self._standby = self._spawn(standby=True)
            except OSError as error:
                self._say(f"no standby can be started: {error.strerror}")
                self._standby_from = time.monotonic() + self._orders.deadline_s

    # --- watching

    def _watch(self, driver: Process) -> Ending:
        """Until the driver is over, one way or the other."""
        signals, told_at = 0, float("inf")
        while True:
            while self._signals > signals:
                signals += 1
                told_at = min(told_at, time.monotonic())
                driver.signal(signal.SIGTERM if signals == 1 else signal.SIGINT)
            for key, _ in self._selector.select(TICK_S):
                self._hear(key.data, driver)
            if (status := driver.status) is not None:
                return self._ending(driver, status)
            if time.monotonic() - told_at > self._orders.grace_s:
                what = f"Process {driver.pid} did not stop within {self._orders.grace_s:g} s, and was killed."
                return Ending("driver_killed", Reason.STOPPED, what, 1)
            if driver.silent_s > self._orders.deadline_s and not self._selector.select(0):  # it was us who slept
                what = f"Process {driver.pid} had no pulse for {driver.silent_s:.0f} s, and was killed."
                return Ending("driver_hung", Reason.HUNG, what, 1)
            self._mind_standby(driver)

    def _hear(self, process: Process, driver: Process) -> None:
        was_warm = process.is_warm
        failures = process.hear()
        if process.is_warm and not was_warm:
            self._say(f"standby {process.pid} is warm")
            self._note(Kind.WARM, process=process.pid)
        if failures is None:
            self._selector.unregister(process.socket)
            return
        if process is not driver:
            return
        if process.job is not None and self._checkpoint is None:
            self._checkpoint = process.job["checkpoint"]
            self._job = process.job["name"]
            self._journal = Journal(process.job["checkpoint"])
            self._ear = Ear(process.job["checkpoint"])
            requests.clear(process.job["checkpoint"])
            self._standby_from = time.monotonic() + QUIET_S
            if self._orders.restart is None and process.job["restart"]:
                self._strategy = parse(process.job["restart"])
        for _ in failures:  # it starts its query again by itself, out of the same budget
            self._count()

    def _ending(self, driver: Process, status: int) -> Ending:
        if driver.socket in self._selector.get_map():
            self._hear(driver, driver)
        told = driver.ended
        if status == 0 or (self._signals and status == -signal.SIGTERM):  # the latter: before it came to its job
            if self._checkpoint is None and not self._signals:
                self._say("the file came to its end, and ran no job")
            return Ending("", Reason.STOPPED, "The job came to its end.", 0)
        if status == 130:
            return Ending("", Reason.STOPPED, "It was ended at once: asked twice, or too slow to stop.", 130)
        if driver.is_over and status > 0:
            what = f"The job was over; then its file ended with exit code {status}."
            return Ending("driver_died", Reason.STOPPED, what, status)
        if told is not None and "reason" in told:
            return Ending(told["code"], Reason.named(told["reason"]), told["text"], status, told["safe"], told["next"])
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        if self._checkpoint is None and status > 0:
            what = f"Process {driver.pid} {how} before it came to job.run(), and would again: it is not started again."
            return Ending("driver_died", Reason.REFUSED, what, 1)
        return Ending("driver_died", Reason.DIED, f"Process {driver.pid} {how}.", 1)

    # --- what follows

    def _code_after(self, ending: Ending) -> int | None:
        """The exit code, if this is the end; None when it is time for another driver."""
        if ending.reason.policy is Policy.IGNORED or self._signals:
            if ending.exit:
                self._say(ending.text)
            return 130 if self._signals > 1 else ending.exit
        told = {"code": ending.code, "reason": ending.reason.word, "safe": ending.safe, "next": ending.next}
        told["what"] = ending.text.splitlines()[0].removeprefix(f"[{ending.code}] ")
        self._note(Kind.DIED, **told)
        self._say(ending.text)
        if ending.reason.policy is Policy.FINAL:
            self._note(Kind.GAVE_UP, **told)
            return ending.exit
        self._count()
        wait = self._strategy.wait(self._failures)
        if wait is None:
            last = f"[{ending.code}] {told['what']}"
            where = Where(job=self._job)
            error = spent(last, self._strategy, self._failed, where=where, safe=ending.safe, next=ending.next)
            self._say(str(error))
            told |= {"code": error.code, "reason": Reason.GAVE_UP.word, "what": error.what}
            self._note(Kind.GAVE_UP, attempt=self._failed, **told)
            return 4
        wait = 0.0 if self._standby is not None and self._standby.status is None else wait
        self._say(f"failure {self._failed}; restart in {wait:.1f} s ({self._strategy.word})")
        self._note(Kind.RESTARTED, attempt=self._failed, seconds=wait, code=ending.code)
        return self._slept(wait)

    def _slept(self, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while not (self._signals or self._wished()):
            if time.monotonic() >= until:
                return None
            time.sleep(min(TICK_S, max(0.0, until - time.monotonic())))
        self._say("stopped while no driver was running")
        self._note(Kind.STOPPED)
        return 0

    def _wished(self) -> bool:
        """Did somebody ask the driver to stop that is no more?"""
        return self._checkpoint is not None and requests.find_between(self._checkpoint) is not None

    def _count(self) -> None:
        self._failed += 1
        self._failures = self._strategy.remember(self._failures, time.time())

    def _note(self, kind: Kind, **facts: Any) -> None:
        if self._journal is not None:
            self._journal.note(Event(kind=kind, job=self._job, at=now(), pid=os.getpid(), **facts))
