"""The parent of a driver process: starts it, watches its heartbeat, and restarts it when it dies or hangs.

    fencepost run job.py              one driver; after a failure a new one, when the strategy's wait is over
    fencepost run job.py --standby    a second one is kept warm, and takes over at once

No election service: two drivers may run at the same time for a moment, and the ledger lets only the newer one decide.
The supervisor may be killed too: its driver carries on until another supervisor's driver fences it.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fencepost.config import ExponentialDelay, Failures, Strategy, parse
from fencepost.errors import LATER, BadConfig, Exit, FencepostError, Policy, Reason, Where, now
from fencepost.observe import commands
from fencepost.observe.events import Event, Kind
from fencepost.observe.heartbeat import Ear
from fencepost.observe.journal import Journal
from fencepost.protocol.append import replaced
from fencepost.protocol.order import State
from fencepost.runtime.keeper import spent
from fencepost.store import LocalStore, ledger
from fencepost.store.path import is_remote
from fencepost.store.spark_log import SparkLog
from fencepost.supervise import machine
from fencepost.supervise.process import Process

TICK_S: Final = 0.1
ASKS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Stop signals: from a service manager, from a person, from a closed terminal."""
QUIET_S: Final = 2.0
"""A new driver has the machine to itself for at least this long; then a standby is started."""
CATCH_UP_S: Final = 10.0
"""The same after a failure: the driver has to catch up, and its latency should be normal again before that."""
IDLE_S: Final = 10.0
"""A driver without an epoch for so long is idle."""
GIVE_WAY_S: Final = 60.0
"""A standby that is not warm by then gets its share of the processors: on a busy machine it would never be."""
START_S: Final = 120.0
"""An epoch that takes longer than this is not part of a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The options of `fencepost run`."""

    command: Sequence[str]
    """The file and its arguments."""
    restart: str | None = None
    """The strategy from the command line, which overrides the job's own."""
    standby: bool = False
    anyway: bool = False
    """Start a standby even if it may not fit into memory."""
    deadline_s: float = 30.0
    """How long a driver may go without a heartbeat."""
    grace_s: float = 40.0
    """How long it may take to stop; a little longer than a driver gives itself."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a driver ended."""

    code: str
    """The error code; empty for a clean end."""
    reason: Reason
    text: str
    exit: int
    safe: str = LATER
    next: str = "Fix the cause shown above, then start the job again."


class Supervisor:
    """Runs a file's job until it ends cleanly, is stopped, or may not be restarted."""

    def __init__(self, orders: Orders, say: Callable[[str], None]) -> None:
        self._orders = orders
        self._say = say
        self._strategy: Strategy = parse(orders.restart) if orders.restart else ExponentialDelay()
        self._failures: Failures = ()
        self._failed = 0
        """The number of failures in total."""
        self._selector = selectors.DefaultSelector()
        self._standby: Process | None = None
        self._standby_from = self._runs_from = 0.0
        """No standby before the one; until the other the driver had not taken over the checkpoint."""
        self._lacks_memory = False
        self._signals = 0
        self._job = Path(orders.command[0]).name
        self._journal: Journal | None = None
        self._ear: Ear | None = None
        self._checkpoint: str | None = None
        """Known once a driver has reached its `job.run()`."""
        self._before: State | None = None
        """The ledger as the first driver found it."""
        self._mine: set[int] = set()
        """The processes that were started here."""

    def run(self) -> int:
        """Supervise to the end; return the exit code."""
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
            what = f"The driver process could not be started: {error.strerror}."
            return Ending("driver_died", Reason.DIED, what, Exit.FAILED)
        self._leave_alone()
        try:
            return self._watch(driver)
        finally:
            self._end(driver)  # with its JVM, before another driver needs the machine

    def _asked(self, number: int, _: Any) -> None:
        self._signals += 1

    # --- processes

    def _spawn(self, *, standby: bool) -> Process:
        process = Process(self._orders.command, "standby" if standby else "first" if self._orders.standby else "alone")
        self._selector.register(process.socket, selectors.EVENT_READ, process)
        self._mine.add(process.pid)
        self._say(f"{'standby' if standby else 'driver'} {process.pid} started")
        self._note(Kind.SPAWNED, process=process.pid, what="standby" if standby else "driver")
        if not standby:
            process.go(self._failures, self._orders.restart)
        return process

    def _takes_over(self) -> Process | None:
        """The standby, if it is alive; it takes over now, warm or not."""
        process, self._standby = self._standby, None
        if process is None:
            return None
        if process.status is not None:
            self._end(process)
            return None
        process.go(self._failures, self._orders.restart)
        self._say(f"standby {process.pid} takes over{'' if process.is_warm else ' (it is not warm yet)'}")
        self._note(Kind.TOOK_OVER, process=process.pid)
        return process

    def _end(self, process: Process) -> None:
        if process.socket in self._selector.get_map():
            self._selector.unregister(process.socket)
        process.kill()

    def _drop_standby(self) -> None:
        if self._standby is not None:
            self._end(self._standby)
            self._standby = None

    def _leave_alone(self) -> None:
        """A new driver: no standby for a while."""
        seconds = CATCH_UP_S if self._failed else QUIET_S
        self._standby_from = self._runs_from = max(self._standby_from, time.monotonic() + seconds)

    def _is_settled(self, driver: Process) -> bool:
        """Has it finished an epoch, or is there none to finish? Until then it needs the machine for itself."""
        now, heard = time.monotonic(), self._ear.beats() if self._ear else []
        beat = next((beat for beat in heard if beat.pid == driver.pid), None)
        if beat is None:  # it has not taken over yet
            self._runs_from = now
        elif beat.epoch is not None or (now > self._runs_from + IDLE_S and not self._is_in_epoch()):
            return True
        return now > self._standby_from + START_S

    def _is_in_epoch(self) -> bool:
        """Has Spark begun an epoch that it has not completed? Nobody waits for a remote store to say so."""
        if self._checkpoint is None or is_remote(self._checkpoint):
            return False
        log = SparkLog(LocalStore(Path(self._checkpoint)))
        with suppress(OSError):
            return log.names("offsets")[-1:] != log.names("commits")[-1:]
        return False

    def _mind_standby(self, driver: Process) -> None:
        """Start a standby when it is time; replace one that died or hangs, but not at once."""
        process = self._standby
        if process is not None and (process.status is not None or process.silent_s > self._orders.deadline_s):
            self._say(f"standby {process.pid} is gone; starting another in {self._orders.deadline_s:g} s")
            self._drop_standby()
            self._standby_from = time.monotonic() + self._orders.deadline_s
        if self._standby is not None:
            self._standby.hurry_after(GIVE_WAY_S)
        wanted = self._orders.standby and self._checkpoint is not None and not self._signals
        if wanted and self._standby is None and time.monotonic() > self._standby_from and self._is_settled(driver):
            try:
                self._check_memory(driver)
                self._standby = self._spawn(standby=True)
                self._lacks_memory = False
            except BadConfig as error:
                if not self._lacks_memory:
                    self._say(str(error))
                self._lacks_memory = True
                self._standby_from = time.monotonic() + self._orders.deadline_s
            except OSError as error:
                self._say(f"the standby could not be started: {error.strerror}")
                self._standby_from = time.monotonic() + self._orders.deadline_s

    def _check_memory(self, driver: Process) -> None:
        """Refuse a standby that would not fit into memory: the kernel would kill the driver, or the standby, or both.

        A warm standby needs about what a driver needs after its first epochs.
        """
        needed, free = machine.used_memory(driver.pid), machine.free_memory()
        if self._orders.anyway or free is None or free >= needed:
            return
        raise BadConfig(
            "no_memory_for_standby",
            f"No standby was started: it would need about {needed >> 20} MB of memory, as much as driver process "
            f"{driver.pid}, and {free >> 20} MB are free on this machine or in this container.",
            where=Where(job=self._job),
            safe="Safe: the job is running. If its driver dies, it is restarted in a new process.",
            next="Free memory, or give the container more: then a standby is started. Or give the driver less "
            "(spark.driver.memory). To start one anyway, use --standby-anyway.",
        )

    # --- watching

    def _watch(self, driver: Process) -> Ending:
        """Watch the driver until it has ended, one way or another."""
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
                what = f"Driver process {driver.pid} did not stop within {self._orders.grace_s:g} s and was killed."
                return Ending("driver_killed", Reason.STOPPED, what, Exit.FAILED)
            if driver.silent_s > self._orders.deadline_s and not self._selector.select(0):  # else it was us who slept
                what = f"Driver process {driver.pid} sent no heartbeat for {driver.silent_s:.0f} s and was killed."
                return Ending("driver_hung", Reason.HUNG, what, Exit.FAILED)
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
            self._before = _ledger(self._checkpoint)
            commands.clear(process.job["checkpoint"])
            self._leave_alone()
            if self._orders.restart is None and process.job["restart"]:
                self._strategy = parse(process.job["restart"])
        for _ in failures:  # the driver restarts its query itself, out of the same budget
            self._count()

    def _ending(self, driver: Process, status: int) -> Ending:
        if driver.socket in self._selector.get_map():
            self._hear(driver, driver)
        told = driver.ended
        before = bool(self._signals) and status == -signal.SIGTERM  # a job that runs ends by itself, and says so
        if status == 0 or before:
            if before:
                self._say("stopped before the job had started")
            elif self._checkpoint is None and not self._signals:
                self._say("the file ended without running a job")
            return Ending("", Reason.STOPPED, "The job ended.", Exit.FINE)
        if status == Exit.INTERRUPTED:
            return Ending("", Reason.STOPPED, "It was ended at once: a second signal, or too slow.", Exit.INTERRUPTED)
        if driver.is_over and status > 0:
            what = f"The job ended cleanly; then its file ended with exit code {status}."
            return Ending("driver_died", Reason.STOPPED, what, status)
        if told is not None and "reason" in told:
            return Ending(told["code"], Reason.named(told["reason"]), told["text"], status, told["safe"], told["next"])
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        if self._checkpoint is None and status > 0:
            what = f"Driver process {driver.pid} {how} before it reached job.run(), so it is not restarted."
            return Ending("driver_died", Reason.REFUSED, what, Exit.FAILED)
        return Ending("driver_died", Reason.DIED, f"Driver process {driver.pid} {how}.", Exit.FAILED)

    # --- what follows

    def _code_after(self, ending: Ending) -> int | None:
        """The exit code, if this is the end; None when it is time for another driver."""
        if ending.reason.policy is Policy.IGNORED or self._signals:
            if ending.exit:
                self._say(ending.text)
            return Exit.INTERRUPTED if self._signals > 1 else ending.exit
        ending = self._if_replaced(ending)
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
            return Exit.EXHAUSTED
        wait = 0.0 if self._standby is not None and self._standby.status is None else wait
        self._say(f"failure {self._failed}; restarting in {wait:.1f} s ({self._strategy.word})")
        self._note(Kind.RESTARTED, attempt=self._failed, seconds=wait, code=ending.code)
        return self._slept(wait)

    def _if_replaced(self, ending: Ending) -> Ending:
        """A driver that died without a word may have been replaced: another would take the checkpoint from that one."""
        state = None if self._checkpoint is None or ending.reason.policy is Policy.FINAL else _ledger(self._checkpoint)
        if state is None or state.driver is None or (self._before and state.writer <= self._before.writer):
            return ending
        if state.driver.host == socket.gethostname() and state.driver.pid in self._mine:
            return ending
        error = replaced(f"{ending.text.splitlines()[0]} It", state)
        return Ending("fenced", Reason.of(error), str(error), Exit.FAILED, error.safe, error.next)

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
        """Did somebody ask the last driver to stop?"""
        return self._checkpoint is not None and commands.find_between(self._checkpoint) is not None

    def _count(self) -> None:
        self._failed += 1
        self._failures = self._strategy.remember(self._failures, time.time())

    def _note(self, kind: Kind, **facts: Any) -> None:
        if self._journal is not None:
            self._journal.note(Event(kind=kind, job=self._job, at=now(), pid=os.getpid(), **facts))


def _ledger(checkpoint: str) -> State | None:
    """What it says, if it can be read at once: a supervisor waits for no remote store."""
    if not is_remote(checkpoint):
        with suppress(FencepostError, OSError):
            return ledger.read(checkpoint)
    return None
