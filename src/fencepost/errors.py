"""Every error of fencepost: what happened, whether the data is safe, and what to do.

Never put a row's value or a secret into an error: these texts are logged.

    FencepostError
    ├── Refused            before any data flowed; change something, start again
    │   ├── BadConfig          an argument or a Spark setting
    │   │   └── BadArgument        an unknown keyword; also a TypeError
    │   ├── GuaranteeTooHigh   the job asks for more than its weakest link gives
    │   ├── TargetRefused      the sink's target is the wrong one, or does not fit
    │   └── CheckpointRefused  the checkpoint is not this job's, or is damaged
    ├── Fenced             a newer driver took over, or may have: final, never retried
    ├── OperatorNeeded     the epoch is safe in the ledger, a person has to choose
    ├── GaveUp             it failed again and again, and the restart strategy allows no more
    └── Retryable          the epoch did not finish; a restart is right
        ├── EpochFailed        nothing of it is visible
        ├── InDoubt            decided, a sink does not answer
        └── RecoveryNeeded     decided, to be finished by recovery

Every error has a `Reason` with a policy (is it tolerated, restarted, ignored or final?) and an `Exit` code. At the end:
durations as people write them.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Self

__all__ = [
    "LATER",
    "TRACE",
    "UNCHANGED",
    "BadArgument",
    "BadConfig",
    "CheckpointRefused",
    "EpochFailed",
    "Exit",
    "Fenced",
    "FencepostError",
    "GaveUp",
    "GuaranteeTooHigh",
    "InDoubt",
    "OperatorNeeded",
    "Policy",
    "Reason",
    "RecoveryNeeded",
    "Refused",
    "Retryable",
    "TargetRefused",
    "Tolerance",
    "Where",
    "code_of",
    "now",
    "seconds",
]


LATER = "Safe: the next start finishes what is decided; what is not decided is not visible, and reruns."
"""For a job that ended in the middle of something."""
UNCHANGED = "Safe: nothing was changed."
"""For a command that refuses before it does anything."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place of an error; unknown parts stay empty."""

    job: str | None = None
    epoch: int | None = None
    sink: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        """Only the known parts, in reading order."""
        parts = [
            f"{name} {value!r}" if isinstance(value, str) else f"{name} {value}"
            for name in ("job", "epoch", "sink", "path")
            if (value := getattr(self, name)) is not None
        ]
        return ", ".join(parts)


class FencepostError(Exception):
    """The base class. `code` is stable and may be matched; the sentences may change."""

    safe: str = "Nothing was written."

    def __init__(
        self,
        code: str,
        what: str,
        *,
        next: str,  # noqa: A002 - the word a reader of the message looks for
        where: Where | None = None,
        safe: str | None = None,
    ) -> None:
        self.code = code
        self.what = what
        self.where: Where = where or Where()
        self.next = next
        if safe is not None:
            self.safe = safe
        super().__init__(code, what)

    def at(self, *, job: str | None = None, epoch: int | None = None, sink: str | None = None) -> Self:
        """Fill in what a deeper layer could not know; never overwrite what it knew."""
        self.where = Where(
            job=self.where.job or job,
            epoch=self.where.epoch if self.where.epoch is not None else epoch,
            sink=self.where.sink or sink,
            path=self.where.path,
        )
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep everything when pickled or copied; Python would call the class with `args`, which lack `next`."""
        return _restored, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        """Four lines: what, where, is the data safe, what next."""
        lines = [f"[{self.code}] {self.what}"]
        if place := str(self.where):
            lines.append(f"  where: {place}")
        lines.append(f"  data:  {self.safe}")
        lines.append(f"  next:  {self.next}")
        return "\n".join(lines)


def _restored(kind: type[FencepostError], args: tuple[Any, ...]) -> FencepostError:
    return kind.__new__(kind, *args)


class Refused(FencepostError):
    """Stopped before any data flowed."""

    safe = "Safe: nothing was read or written."


class BadConfig(Refused):
    """An argument or a Spark setting that cannot work; change it and start again."""


class BadArgument(BadConfig, TypeError):
    """A call with an unknown keyword, most likely a typo."""


class GuaranteeTooHigh(Refused):
    """The job asks for a guarantee that one of its links cannot give."""


class TargetRefused(Refused):
    """The sink's target was replaced, belongs to another lineage, or its columns do not fit."""


class CheckpointRefused(Refused):
    """The checkpoint belongs to another job, has no ledger, or is damaged."""

    safe = "Safe: the sinks hold every decided epoch once; nothing was changed."


class Fenced(FencepostError):
    """A newer driver owns the checkpoint. Final: a retry would only fence the other one."""

    safe = "Safe: the other driver continues where this one was; this one has changed nothing since."


class OperatorNeeded(FencepostError):
    """A person has to decide: to continue without one would be a guess."""

    safe = "Safe: the decision is in the ledger; nothing will be guessed."


class GaveUp(FencepostError):
    """The restart strategy's budget is spent; the last failure is the cause."""

    safe = LATER


class Retryable(FencepostError):
    """A restart is the right answer; a restart strategy may do it."""


class EpochFailed(Retryable):
    """The epoch was not decided; nothing of it is visible and it will rerun."""

    safe = "Safe: the epoch was not decided, nothing of it is visible; it reruns from the same offsets."


class InDoubt(Retryable):
    """A sink did not say whether it holds a decided epoch; recovery will ask it again."""

    safe = "Safe: the epoch is decided and will be finished; the sink has to answer first."


class RecoveryNeeded(Retryable):
    """A decided epoch is waiting to be finished; only recovery may do that, never a rerun of the plan."""

    safe = "Safe: the epoch is decided and will be finished from the ledger."


def require(code: str, *modules: str, extra: str, purpose: str = "") -> None:
    """Refuse, in one sentence, if the package of an extra is missing; call it before the import that needs it."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            package = module.partition(".")[0]
            raise BadConfig(
                code,
                f"The Python package {package} is not installed{purpose and ', which is needed ' + purpose}.",
                next=f"pip install 'fencepost[{extra}]'",
            ) from error


def named(call: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an error that suggests the nearest keyword in place of Python's bare TypeError."""

    @wraps(function)
    def checked(*positional: Any, **keywords: Any) -> Any:
        try:
            return function(*positional, **keywords)
        except TypeError:
            if (wrong := unknown_keyword(call, function, keywords)) is not None:
                raise wrong from None
            raise

    return checked


def unknown_keyword(call: str, function: Callable[..., Any], keywords: Iterable[str]) -> BadArgument | None:
    """An error for the first keyword that the function does not take, with the nearest one; None if all are fine."""
    parameters = inspect.signature(function).parameters
    loose = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    unknown = next((word for word in keywords if not loose and word not in parameters), None)
    if unknown is None:
        return None
    known = [word for word, each in parameters.items() if word != "self" and each.kind is not each.VAR_POSITIONAL]
    near = difflib.get_close_matches(unknown, known, 1, 0.5)
    return BadArgument(
        "unknown_argument",
        f"{call}(…) has no argument {unknown}=…",
        next=f"Did you mean {near[0]}=…?" if near else f"It takes {', '.join(known)}.",
    )


# --- why a job failed, and what follows from that


class Policy(enum.Enum):
    """What follows from a failure."""

    TOLERATED = "tolerated"
    """An epoch failed before its decision: retried, as often in a row as the checkpoint's options say."""
    RESTARTED = "restarted"
    """The query or the driver is gone: the restart strategy is asked."""
    IGNORED = "ignored"
    """Somebody wanted it: it does not count."""
    FINAL = "final"
    """A retry cannot help, or must not happen: no strategy is asked."""


class Reason(enum.Enum):
    """Every kind of failure, with its word in journal and messages, and its policy."""

    EXPIRED = ("expired", Policy.TOLERATED)
    """The epoch was not decided within the checkpoint's timeout."""
    NOT_DECIDED = ("not_decided", Policy.TOLERATED)
    """Pre-commit, vote or snapshot failed; nothing of the epoch is visible."""
    ENGINE = ("engine", Policy.RESTARTED)
    """Spark ended the query: the plan, a task, a lost file."""
    ENGINE_LOST = ("engine_lost", Policy.RESTARTED)
    """Spark's JVM is gone: only a new process helps."""
    UNFINISHED = ("unfinished", Policy.RESTARTED)
    """The epoch is decided; recovery has to finish it."""
    SILENT_SINK = ("silent_sink", Policy.RESTARTED)
    """The epoch is decided; the sink does not say whether it holds it."""
    UNREACHABLE = ("unreachable", Policy.RESTARTED)
    """A target or the checkpoint did not answer at the start."""
    DIED = ("died", Policy.RESTARTED)
    """The process is gone: killed, out of memory, crashed."""
    HUNG = ("hung", Policy.RESTARTED)
    """The process sent no heartbeat for too long, and was killed."""
    STOPPED = ("stopped", Policy.IGNORED)
    FENCED = ("fenced", Policy.FINAL)
    """A newer driver owns the checkpoint, or may own it."""
    REFUSED = ("refused", Policy.FINAL)
    """Something has to be changed first."""
    OPERATOR = ("operator", Policy.FINAL)
    """A person has to choose."""
    GAVE_UP = ("gave_up", Policy.FINAL)
    """The restart strategy allows no more."""

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def policy(self) -> Policy:
        return self.value[1]

    @classmethod
    def named(cls, word: str) -> Reason:
        return next(reason for reason in cls if reason.word == word)

    @classmethod
    def of(cls, error: FencepostError) -> Reason:
        """Why this error ended an epoch or a query."""
        if (known := _BY_CODE.get(error.code)) is not None:
            return cls[known]
        return next((cls[name] for kind, name in _BY_CLASS if isinstance(error, kind)), cls.UNREACHABLE)


_BY_CODE = {"epoch_timeout": "EXPIRED", "jvm_lost": "ENGINE_LOST", "spark_failed": "ENGINE"}
_BY_CODE |= dict.fromkeys(("bad_record", "bad_output"), "ENGINE")  # the plan has to rerun
_BY_CLASS = (
    (EpochFailed, "NOT_DECIDED"),
    (InDoubt, "SILENT_SINK"),
    (RecoveryNeeded, "UNFINISHED"),
    (Fenced, "FENCED"),
    (OperatorNeeded, "OPERATOR"),
    (Refused, "REFUSED"),
    (GaveUp, "GAVE_UP"),
)


class Tolerance:
    """How many failed epochs in a row are tolerated. One per run of a job: driver and job count together."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.failures = 0
        """In a row, so far."""

    def bears(self, error: FencepostError) -> bool:
        """Count one more; should it be retried without asking the restart strategy?"""
        if Reason.of(error).policy is not Policy.TOLERATED:
            return False
        self.failures += 1
        return self.failures <= self.most

    def reset(self) -> None:
        """An epoch was completed."""
        self.failures = 0


# --- how a process ends


class Exit(enum.IntEnum):
    """What a program that called us may rely on.

    0    fine
    1    failed: it did not work this time, or another driver took over, or a check of the data found something; or the
         output pipe was closed early
    2    refused: the command line, the job or its settings have to be changed first
    3    a person is needed, or an outcome is in doubt
    4    the restart strategy's budget is spent
    130  interrupted
    """

    FINE = 0
    FAILED = 1
    REFUSED = 2
    OPERATOR = 3
    EXHAUSTED = 4
    INTERRUPTED = 130


def code_of(error: FencepostError) -> Exit:
    """The exit code, by what has to happen next: change something, ask a person, or (all the rest) try again."""
    if isinstance(error, Refused):
        return Exit.REFUSED
    if isinstance(error, GaveUp):
        return Exit.EXHAUSTED
    return Exit.OPERATOR if isinstance(error, OperatorNeeded | InDoubt) else Exit.FAILED


# --- what a script prints when it ends with an error: `python job.py`

TRACE: Final = "FENCEPOST_TRACE"
"""If set: the whole traceback, and Spark's own log on stderr."""

_details: list[Callable[[], str | None]] = []


def also_say(detail: Callable[[], str | None]) -> None:
    """Add a line to what a script prints when it ends with an error."""
    _details.append(detail)


def speak_plainly() -> None:
    """Let a script that ends with one of our errors, or by Ctrl-C, print what a person needs, and exit with our code.

    Only where nothing else handles errors, as a notebook, a debugger, a test runner and our command line do.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    of_others = spec is not None and spec.name.partition(".")[0] in {"pyspark", "fencepost"}
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and not of_others and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _last_words


def _last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    ours = isinstance(error, FencepostError | KeyboardInterrupt)
    if not ours or os.environ.get(TRACE) or hasattr(sys, "ps1") or sys.flags.interactive:
        sys.__excepthook__(kind, error, trace)
        if not isinstance(error, FencepostError):
            return
    # Without the causes: client libraries quote rows and connection strings in theirs.
    lines = [] if os.environ.get(TRACE) else ["Interrupted."] if isinstance(error, KeyboardInterrupt) else [str(error)]
    if isinstance(error, FencepostError):
        lines += [line for detail in _details if (line := detail()) is not None]
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
    if not (hasattr(sys, "ps1") or sys.flags.interactive):
        raise SystemExit(code_of(error) if isinstance(error, FencepostError) else Exit.INTERRUPTED)


# --- durations, as people write them: '500 ms', '10 seconds', '1 minute 30 seconds', '30 days'

UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1,
    "second": 1,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "day": 86400,
    "week": 604800,
}
TIME = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(sorted(UNITS, key=len, reverse=True))})s?\b")


def seconds(text: object) -> float | None:
    """A duration in seconds; None if the text is not one."""
    if not isinstance(text, str) or re.fullmatch(f"({TIME.pattern})+", text.strip()) is None:
        return None
    return sum(float(number) * UNITS[unit] for number, unit in TIME.findall(text))


def now() -> str:
    """The time in UTC, for people who read the ledger and the journal."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
