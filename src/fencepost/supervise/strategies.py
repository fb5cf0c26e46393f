"""When a failed job is started again, and when not any more: Flink's restart strategies.

    FixedDelay         so many times in all, a fixed time apart
    FailureRate        as often as it takes, but not too often in an interval
    ExponentialDelay   ever longer waits, for ever; short again after a good while
    NoRestart          never

Settings, and pure functions of the times of past failures: the clock is the caller's. Whoever restarts keeps the times:
the driver for a query that failed, the supervisor for a driver that died, both out of one budget.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final

from fencepost.errors import BadConfig, Where
from fencepost.times import seconds

Failures = tuple[float, ...]
"""When the failures happened that still count, in seconds, oldest first."""
MOST_WAITS: Final = 1000
"""Of an exponential delay: more failures in a row than it takes to come to the longest wait."""


class Strategy(ABC):
    """How often, and after how long, a failed job is started again."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be, all at once."""
        if problems := list(self._problems()):
            raise BadConfig(
                "bad_restart",
                f"The restart strategy cannot be: {'; '.join(problems)}.",
                next="Mend it, as in restart=fp.FixedDelay(attempts=3, delay='10 seconds').",
            )

    def _problems(self) -> list[str]:
        found = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type == "int" and not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
                found.append(f"{field.name}={value!r} is no number of times (0 or more)")
            if field.type == "str" and seconds(value) is None:
                found.append(f"{field.name}={value!r} is no time (write '500 ms', '10 seconds', '5 minutes')")
        return found

    @abstractmethod
    def remember(self, failures: Failures, now: float) -> Failures:
        """A failure happened now: all failures that still count, this one last."""

    @abstractmethod
    def wait(self, failures: Failures) -> float | None:
        """How many seconds to wait after the last of these; None if the budget is spent."""

    @property
    def word(self) -> str:
        """As it is written on the command line, and read by `parse`; what is as usual is left out."""
        mine: Any = self
        told = {field.name: (getattr(self, field.name), field.default) for field in fields(mine)}
        given = ",".join(f"{name}={value}" for name, (value, default) in told.items() if value != default)
        return f"{_name(type(self))}:{given}" if given else _name(type(self))


@dataclass(frozen=True, slots=True)
class NoRestart(Strategy):
    """The first failure ends the job."""

    def remember(self, failures: Failures, now: float) -> Failures:
        """The last one is all there is."""
        return (now,)

    def wait(self, failures: Failures) -> float | None:
        """Never again."""
        return None


@dataclass(frozen=True, slots=True)
class FixedDelay(Strategy):
    """So many restarts in all, each after the same time.

    The mistake people make: few attempts for a job that runs for years. They do not come back after a good week;
    FailureRate and ExponentialDelay forget old failures.
    """

    attempts: int = 60
    delay: str = "10 seconds"

    def remember(self, failures: Failures, now: float) -> Failures:
        """One more than the attempts says that they are spent."""
        return (*failures, now)[-(self.attempts + 1) :]

    def wait(self, failures: Failures) -> float | None:
        """The same each time."""
        return seconds(self.delay) if len(failures) <= self.attempts else None


@dataclass(frozen=True, slots=True)
class FailureRate(Strategy):
    """Any number of restarts, but no more than `max_failures` failures within an interval.

    The mistake people make: an interval shorter than `max_failures` restarts take. The rate is then never exceeded,
    and a job that can never run is started for ever.
    """

    max_failures: int = 1
    interval: str = "1 minute"
    delay: str = "1 second"

    def remember(self, failures: Failures, now: float) -> Failures:
        """Those within the interval."""
        first = now - (seconds(self.interval) or 0)
        return (*(at for at in failures if at > first), now)[-(self.max_failures + 1) :]

    def wait(self, failures: Failures) -> float | None:
        """The same each time."""
        return seconds(self.delay) if len(failures) <= self.max_failures else None


@dataclass(frozen=True, slots=True)
class ExponentialDelay(Strategy):
    """Restart for ever, waiting longer each time; after `reset_after` without a failure the waits are short again.

    The mistake people make: a `maximum` of hours. When the cause is mended the job still sleeps.
    """

    initial: str = "1 second"
    maximum: str = "1 minute"
    multiplier: float = 1.5
    jitter: float = 0.1
    """The wait differs by so much of itself, up or down: many jobs must not come back at the same moment."""
    reset_after: str = "1 hour"

    def _problems(self) -> list[str]:
        found = Strategy._problems(self)
        for name, least, most in (("multiplier", 1, 1000), ("jitter", 0, 1)):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                found.append(f"{name}={value!r} is not from {least} to {most}")
        if not found and (seconds(self.initial) or 0) > (seconds(self.maximum) or 0):
            found.append(f"initial={self.initial!r} is longer than maximum={self.maximum!r}")
        return found

    def remember(self, failures: Failures, now: float) -> Failures:
        """Those since the last good while."""
        known = (*failures, now)
        rest = seconds(self.reset_after) or 0
        first = max((i for i, (one, next_) in enumerate(pairwise(known), 1) if next_ - one > rest), default=0)
        return known[first:][-MOST_WAITS:]

    def wait(self, failures: Failures) -> float | None:
        """Longer each time, up to the maximum."""
        longest = seconds(self.maximum) or 0
        base = seconds(self.initial) or 0.0
        for _ in failures[1:]:  # not by a power: that one overflows
            base = min(base * self.multiplier, longest)
        return min(base * random.uniform(1 - self.jitter, 1 + self.jitter), longest)  # noqa: S311 - spreads restarts


NAMED: Final[dict[str, Any]] = {
    "none": NoRestart,
    "fixed_delay": FixedDelay,
    "failure_rate": FailureRate,
    "exponential_delay": ExponentialDelay,
}


def parse(text: str) -> Strategy:
    """`none`, `fixed-delay:attempts=3,delay=10s`: a strategy as the command line has it."""
    name, _, rest = text.strip().partition(":")
    kind = NAMED.get(name.strip().replace("-", "_"))
    if kind is None:
        raise _unreadable(f"there is no strategy {name!r}, only {', '.join(NAMED)}")
    known = {field.name: str(field.type) for field in fields(kind)}
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key.replace("-", "_") not in known:
            raise _unreadable(f"{name} knows no {key!r}, only {', '.join(known) or 'nothing'}")
        try:
            given[key.replace("-", "_")] = {"int": int, "float": float}.get(known[key.replace("-", "_")], str)(value)
        except ValueError:
            raise _unreadable(f"{key}={value!r} is no number") from None
    made: Strategy = kind(**given)
    return made


def one_strategy(given: object, job: str) -> Strategy | None:
    """What a job was given as `restart`."""
    if given is None or isinstance(given, Strategy):
        return given
    raise BadConfig(
        "bad_restart",
        f"restart={given!r} is no restart strategy.",
        where=Where(job=job),
        next="Give fp.FixedDelay(…), fp.FailureRate(…), fp.ExponentialDelay(…) or fp.NoRestart().",
    )


def _unreadable(what: str) -> BadConfig:
    return BadConfig(
        "bad_restart",
        f"The restart strategy cannot be read: {what}.",
        next="Write it as fixed-delay:attempts=60,delay=10s, failure-rate:max_failures=3,interval=5min,delay=1s, "
        "exponential-delay:initial=1s,maximum=1min, or none.",
    )


def _name(kind: type[Strategy]) -> str:
    return next(name for name, known in NAMED.items() if known is kind)
