"""The settings of a run: its checkpoint, its state backend, its restart strategy; all of it as one value.

    Checkpoint                                         the folder, and how it is kept
    MemoryState · FileSystemState · RocksDBState       where the state is, and how it gets into the checkpoint
    FixedDelay · FailureRate · ExponentialDelay · NoRestart    when a failed job is restarted
    RunConfig                                          all settings of one start, besides its DataFrames and sinks

Settings only; nothing is opened here. Never accepts a value that it does not understand: every problem is listed at
once, before anything starts.
"""

from __future__ import annotations

import os
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args

from fencepost.errors import BadConfig, Where, seconds
from fencepost.guarantee import Guarantee
from fencepost.store import staging
from fencepost.store.path import is_remote, whole_url

OnCancel = Literal["keep", "delete"]

LEAST_KEPT = 2
"""Recovery looks at the newest two epochs."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, how it is kept, and the pace of its epochs; goes wherever `checkpoint=` takes a path.

    An epoch is one micro-batch of Spark: the rows between two sets of source offsets, decided as one.

    Args:
        path: The folder; leave it out if the state backend names it (fp.MemoryState, fp.FileSystemState(path)).
        interval: The minimum time from the start of one epoch to the start of the next ('10 seconds'); by default
            epochs start as data arrives, with a pause of up to 50 ms after one of few records ('0 s' leaves it out).
            With fp.start, use the writer's trigger instead.
        timeout: An epoch that is not decided within this time after its barrier is dropped and reruns; by default no
            limit.
        min_pause: The minimum time between the end of one epoch and the start of the next.
        tolerable_failures: How many failed epochs in a row are tolerated: the query retries from the staged rows. By
            default none.
        keep_epochs: How many epochs to keep, at least 2; by default 100, or more if the session says so.
        on_cancel: 'keep' the folder (the default), or 'delete' it on `job.cancel()`, if nothing needs it any more.
        overlap: True lets Spark begin the next epoch while the last one is committed to the sinks (with exactly_once);
            by default it waits for them. What is promised stays; rows are seen at most one epoch later.

    Note: with a timeout close to the time an epoch takes, one slow hour drops one epoch after another and the job falls
    further and further behind; use several times the longest epoch.
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    interval: str | None = None
    timeout: str | None = None
    min_pause: str | None = None
    tolerable_failures: int | None = None
    keep_epochs: int | None = None
    on_cancel: OnCancel | None = None
    overlap: bool | None = None

    def __post_init__(self) -> None:
        """Refuse bad values, all of them at once."""
        if problems := option_problems({name: getattr(self, name) for name in OPTIONS}):
            raise BadConfig(
                "bad_checkpoint_options",
                f"Invalid checkpoint options: {'; '.join(problems)}.",
                where=Where(path=None if self.path is None else os.fspath(self.path)),
                next="Fix them, and start again.",
            )

    @property
    def deletes(self) -> bool:
        """Delete it when the job is cancelled?"""
        return self.on_cancel == "delete"

    @property
    def interval_ms(self) -> int:
        """The interval in whole milliseconds, as Spark's trigger counts."""
        return round(1000 * (seconds(self.interval or "") or 0.0))

    @property
    def tolerates(self) -> int:
        """How many failed epochs in a row."""
        return self.tolerable_failures or 0

    @property
    def overlaps(self) -> bool:
        """Is an epoch committed beside the next one's tasks?"""
        return self.overlap or False

    @property
    def min_pause_s(self) -> float:
        """`min_pause` in seconds."""
        return seconds(self.min_pause or "") or 0.0

    @property
    def timeout_s(self) -> float | None:
        """`timeout` in seconds."""
        return seconds(self.timeout or "")

    def check_for_a_query_alone(self, job: str | None) -> None:
        """Refuse options that only a job can honour: a bare query is started, paced and cancelled by its caller."""
        named = {"interval": self.interval, "tolerable_failures": self.tolerable_failures, "on_cancel": self.deletes}
        if wrong := [name for name, value in named.items() if value]:
            raise BadConfig(
                "option_needs_a_job",
                f"fp.start() ignores these checkpoint options: {', '.join(wrong)}.",
                where=Where(job=job),
                next="Use fp.Job(…).write(…).run(), or remove them (for interval, set the writer's trigger).",
            )

    @property
    def place(self) -> str:
        """The folder; known once `settled`."""
        assert self.path is not None, "settle it first"
        return os.fspath(self.path)


OPTIONS: Final = ("interval", "timeout", "min_pause", "tolerable_failures", "keep_epochs", "on_cancel", "overlap")
"""Of a checkpoint, besides its path. None stands for the default: the environment or a file may say otherwise."""


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """What is wrong with options of a checkpoint; None and what is not there are fine."""
    given = {name: value for name, value in options.items() if value is not None}
    problems = [
        f"{name}={value!r} is not a duration (write '500 ms', '10 seconds', '5 minutes')"
        for name in ("interval", "timeout", "min_pause")
        if (value := given.get(name)) is not None and seconds(value) is None
    ]
    if seconds(given.get("timeout")) == 0:
        problems.append("timeout='0' would drop every epoch")
    if not _whole(failures := given.get("tolerable_failures", 0), 0):
        problems.append(f"tolerable_failures={failures!r} must be a number of epochs (0 or more)")
    if not _whole(kept := given.get("keep_epochs", LEAST_KEPT), LEAST_KEPT):
        problems.append(f"keep_epochs={kept!r} must be at least {LEAST_KEPT}: recovery needs them")
    if (end := given.get("on_cancel", "keep")) not in get_args(OnCancel):
        problems.append(f"on_cancel={end!r} must be {' or '.join(map(repr, get_args(OnCancel)))}")
    if not isinstance(overlap := given.get("overlap", False), bool):
        problems.append(f"overlap={overlap!r} must be True or False")
    return problems


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# --- where the state is: one argument, fixed when the checkpoint is created


@dataclass(frozen=True, slots=True)
class MemoryState:
    """State on the heap, checkpoint in memory: survives a failed query, not a lost driver.

    Note: for tests and experiments, not for production. When the process ends, state and checkpoint are gone, and every
    sink that remembers its epochs refuses a new start.
    """


@dataclass(frozen=True, slots=True)
class FileSystemState:
    """State on the heap, checkpoint on a disk; `path` may name the checkpoint, then the job needs no `checkpoint=`.

    Note: not for state that does not fit into memory. On a cluster it needs a checkpoint on HDFS or s3a: in a folder
    Spark's heap state files do not say who wrote them, so one executor has to. RocksDB has neither limit.
    """

    path: str | os.PathLike[str] | None = None


@dataclass(frozen=True, slots=True)
class RocksDBState:
    """State in RocksDB on the executors' disks, checkpoint on a disk: the default.

    Note: leave `incremental` on for a large state. With False every epoch uploads what RocksDB has flushed
    since the one before, and lists all of it; with True it writes what the epoch changed.
    """

    incremental: bool = True


Backend = MemoryState | FileSystemState | RocksDBState


# --- when a failed job is restarted: Flink's restart strategies
#
# Pure functions of the times of past failures: the caller brings the clock. Whoever restarts keeps the times: the
# driver for a query that failed, the supervisor for a driver that died, both from one budget.

Failures = tuple[float, ...]
"""The times of the failures that still count, in seconds, oldest first."""
MOST_WAITS: Final = 1000
"""For an exponential delay: more failures in a row than it takes to reach the longest wait."""


class Strategy(ABC):
    """How often, and after what delay, a failed job is restarted."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Refuse bad values, all of them at once."""
        if problems := list(self._problems()):
            raise BadConfig(
                "bad_restart",
                f"Invalid restart strategy: {'; '.join(problems)}.",
                next="Fix it, for example restart=fp.FixedDelay(attempts=3, delay='10 seconds').",
            )

    def _problems(self) -> list[str]:
        found = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type == "int" and not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
                found.append(f"{field.name}={value!r} must be a whole number (0 or more)")
            if field.type == "str" and seconds(value) is None:
                found.append(f"{field.name}={value!r} is not a duration (write '500 ms', '10 seconds', '5 minutes')")
        return found

    @abstractmethod
    def remember(self, failures: Failures, now: float) -> Failures:
        """There was a failure just now: return all failures that still count, this one last."""

    @abstractmethod
    def wait(self, failures: Failures) -> float | None:
        """How many seconds to wait after the last of these; None if the budget is spent."""

    @property
    def word(self) -> str:
        """As it is written on the command line and read by `parse`, without the defaults."""
        mine: Any = self
        told = {field.name: (getattr(self, field.name), field.default) for field in fields(mine)}
        given = ",".join(f"{name}={value}" for name, (value, default) in told.items() if value != default)
        return f"{_name(type(self))}:{given}" if given else _name(type(self))


@dataclass(frozen=True, slots=True)
class NoRestart(Strategy):
    """The first failure ends the job."""

    def remember(self, failures: Failures, now: float) -> Failures:
        return (now,)

    def wait(self, failures: Failures) -> float | None:
        return None


@dataclass(frozen=True, slots=True)
class FixedDelay(Strategy):
    """A fixed number of restarts, each after the same delay.

    Note: attempts are never given back, so a few are not enough for a job that runs for years; FailureRate and
    ExponentialDelay forget old failures.
    """

    attempts: int = 60
    delay: str = "10 seconds"

    def remember(self, failures: Failures, now: float) -> Failures:
        """One more failure than attempts means that the budget is spent."""
        return (*failures, now)[-(self.attempts + 1) :]

    def wait(self, failures: Failures) -> float | None:
        return seconds(self.delay) if len(failures) <= self.attempts else None


@dataclass(frozen=True, slots=True)
class FailureRate(Strategy):
    """Any number of restarts, but no more than `max_failures` failures within an interval.

    Note: if the interval is shorter than `max_failures` restarts take, the rate is never exceeded, and a job that can
    never run is restarted endlessly.
    """

    max_failures: int = 1
    interval: str = "1 minute"
    delay: str = "1 second"

    def remember(self, failures: Failures, now: float) -> Failures:
        first = now - (seconds(self.interval) or 0)
        return (*(at for at in failures if at > first), now)[-(self.max_failures + 1) :]

    def wait(self, failures: Failures) -> float | None:
        return seconds(self.delay) if len(failures) <= self.max_failures else None


@dataclass(frozen=True, slots=True)
class ExponentialDelay(Strategy):
    """Restart without limit, waiting longer each time; after `reset_after` without a failure the waits are short again.

    Note: with a `maximum` of hours, the job still sleeps long after the cause is fixed.
    """

    initial: str = "1 second"
    maximum: str = "1 minute"
    multiplier: float = 1.5
    jitter: float = 0.1
    """The fraction by which each wait varies, up or down, so that many jobs do not come back at the same moment."""
    reset_after: str = "1 hour"

    def _problems(self) -> list[str]:
        found = Strategy._problems(self)
        for name, least, most in (("multiplier", 1, 1000), ("jitter", 0, 1)):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
                found.append(f"{name}={value!r} must be between {least} and {most}")
        if not found and (seconds(self.initial) or 0) > (seconds(self.maximum) or 0):
            found.append(f"initial={self.initial!r} is longer than maximum={self.maximum!r}")
        return found

    def remember(self, failures: Failures, now: float) -> Failures:
        """Those since the last time without failures."""
        known = (*failures, now)
        rest = seconds(self.reset_after) or 0
        first = max((i for i, (one, next_) in enumerate(pairwise(known), 1) if next_ - one > rest), default=0)
        return known[first:][-MOST_WAITS:]

    def wait(self, failures: Failures) -> float | None:
        longest = seconds(self.maximum) or 0
        base = seconds(self.initial) or 0.0
        for _ in failures[1:]:  # not with a power, which overflows
            base = min(base * self.multiplier, longest)
        return min(base * random.uniform(1 - self.jitter, 1 + self.jitter), longest)  # noqa: S311 - spreads restarts


NAMED: Final[dict[str, Any]] = {
    "none": NoRestart,
    "fixed_delay": FixedDelay,
    "failure_rate": FailureRate,
    "exponential_delay": ExponentialDelay,
}


def parse(text: str) -> Strategy:
    """`none`, `fixed-delay:attempts=3,delay=10s`: a strategy as written on the command line."""
    name, _, rest = text.strip().partition(":")
    kind = NAMED.get(name.strip().replace("-", "_"))
    if kind is None:
        raise _unreadable(f"unknown strategy {name!r} (known: {', '.join(NAMED)})")
    known = {field.name: str(field.type) for field in fields(kind)}
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key.replace("-", "_") not in known:
            raise _unreadable(f"{name} has no option {key!r} (it has: {', '.join(known) or 'none'})")
        try:
            given[key.replace("-", "_")] = {"int": int, "float": float}.get(known[key.replace("-", "_")], str)(value)
        except ValueError:
            raise _unreadable(f"{key}={value!r} is not a number") from None
    made: Strategy = kind(**given)
    return made


def one_strategy(given: object, job: str) -> Strategy | None:
    """Check a job's `restart` argument."""
    if given is None or isinstance(given, Strategy):
        return given
    raise BadConfig(
        "bad_restart",
        f"restart={given!r} is not a restart strategy.",
        where=Where(job=job),
        next="Use fp.FixedDelay(…), fp.FailureRate(…), fp.ExponentialDelay(…) or fp.NoRestart().",
    )


def _unreadable(what: str) -> BadConfig:
    return BadConfig(
        "bad_restart",
        f"Invalid restart strategy: {what}.",
        next="Write it as fixed-delay:attempts=60,delay=10s, failure-rate:max_failures=3,interval=5min,delay=1s, "
        "exponential-delay:initial=1s,maximum=1min, or none.",
    )


def _name(kind: type[Strategy]) -> str:
    return next(name for name, known in NAMED.items() if known is kind)


# --- the run

BridgeName = Literal["jvm", "foreach_batch"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that was found outside the code (see settings.py)."""

    name: str
    value: str
    """As people write it. Never a secret: no setting is one."""
    origin: str
    """The variable, or the key with its table and file."""
    unused: str = ""
    """Why it has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All settings of one start of a job, besides its DataFrames and sinks. Never changes."""

    job: str
    checkpoint: Checkpoint
    """With its path: see `settled`."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    state: Backend | None = None
    """None: what the checkpoint was created with, and RocksDB for a new one."""
    output_mode: str | None = None
    """For all branches; None: update if one aggregates without a watermark, else append."""
    bridge: BridgeName | None = None
    """None: the JVM's, if this session has our jar."""
    adopt: bool = False
    """Take over a checkpoint created by plain Spark."""
    deterministic_udfs: bool = False
    """The user says that Python functions return the same result for the same record."""
    allow_sink_changes: bool = False
    """The user accepts that sinks were added, removed or given other targets."""
    allow_plan_changes: bool = False
    """The user accepts that state goes on although what lies below it was changed."""
    one_scan: bool = True
    """Do branches without state read their source once for all of them, where that is safe?"""
    restart: Strategy | None = None
    is_known: bool = True
    """Can it be found by its name? A throw-away job cannot."""
    outside: tuple[Setting, ...] = ()
    """What the environment and the file say about this job."""

    @property
    def place(self) -> str:
        """The checkpoint's folder, or its URL."""
        return self.checkpoint.place


def settled(given: Checkpoint | str | os.PathLike[str] | None, state: Backend | None, job: str | None) -> Checkpoint:
    """The checkpoint with its path, which the job or the state backend names."""
    found = given if isinstance(given, Checkpoint) else Checkpoint(given)
    where = Where(job=job)
    if isinstance(state, MemoryState):
        if found.path is not None:
            raise BadConfig(
                "memory_has_no_place",
                "fp.MemoryState() keeps the checkpoint in memory, but the job names a folder for it.",
                where=where,
                next="Remove the path, or use fp.FileSystemState() or fp.RocksDBState(), which keep it in a folder.",
            )
        return replace(found, path=staging.process_folder(job or "query"))
    named = {whole_path(os.fspath(path), job) for path in (found.path, _path_of(state)) if path is not None}
    if not named:
        raise BadConfig(
            "no_checkpoint",
            "The job has no checkpoint.",
            where=where,
            next="Name its folder: checkpoint='checkpoints/<job>'. For an fp.Job, FENCEPOST_CHECKPOINTS may name the "
            "folder above it.",
        )
    if len(named) > 1:
        raise BadConfig(
            "two_checkpoints",
            "The job and its fp.FileSystemState(…) name different folders.",
            where=where,
            next="Name one folder: checkpoint='checkpoints/<job>'.",
        )
    return replace(found, path=named.pop())


def whole_path(path: str, job: str | None) -> str:
    """The absolute path of a folder on this machine, or the URL of one elsewhere."""
    if is_remote(path):
        return whole_url(path, job)
    return str(Path(re.sub(r"^file:(//)?(?=/)", "", path)).absolute())


def _path_of(state: Backend | None) -> str | os.PathLike[str] | None:
    return state.path if isinstance(state, FileSystemState) else None
