"""Why a job failed, and what follows from that.

TOLERATED   an epoch failed before its decision: borne so often in a row as the checkpoint's options say
RESTARTED   the query or the driver is gone: the restart strategy is asked
IGNORED     somebody wanted it: counts for nothing
FINAL       trying again cannot help, or must not: no strategy is asked
"""

from __future__ import annotations

import enum

from fencepost.errors import (
    EpochFailed,
    Fenced,
    FencepostError,
    GaveUp,
    InDoubt,
    OperatorNeeded,
    RecoveryNeeded,
    Refused,
)


class Policy(enum.Enum):
    """What follows from a failure."""

    TOLERATED = "tolerated"
    RESTARTED = "restarted"
    IGNORED = "ignored"
    FINAL = "final"


class Reason(enum.Enum):
    """Every kind of failure, with its policy."""

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
    """The process had no pulse for too long, and was killed."""
    STOPPED = ("stopped", Policy.IGNORED)
    FENCED = ("fenced", Policy.FINAL)
    """A newer driver owns the checkpoint."""
    REFUSED = ("refused", Policy.FINAL)
    """Something has to be changed first."""
    OPERATOR = ("operator", Policy.FINAL)
    """A person has to choose."""
    GAVE_UP = ("gave_up", Policy.FINAL)
    """The restart strategy allows no more."""

    @property
    def word(self) -> str:
        """As it is written in messages."""
        return self.value[0]

    @property
    def policy(self) -> Policy:
        """What follows from it."""
        return self.value[1]

    @classmethod
    def named(cls, word: str) -> Reason:
        """By its word."""
        return next(reason for reason in cls if reason.word == word)

    @classmethod
    def of(cls, error: FencepostError) -> Reason:
        """Why this error ended an epoch or a query."""
        if (known := _BY_CODE.get(error.code)) is not None:
            return cls[known]
        return next((cls[name] for kind, name in _BY_CLASS if isinstance(error, kind)), cls.UNREACHABLE)


_BY_CODE = {"epoch_timeout": "EXPIRED", "jvm_lost": "ENGINE_LOST", "spark_failed": "ENGINE"}
_BY_CODE |= dict.fromkeys(("bad_record", "bad_output"), "ENGINE")  # the plan has to run again
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
    """How many failed epochs in a row are borne. One for a run of a job: the driver and the job count together."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.failures = 0
        """In a row, up to now."""

    def bears(self, error: FencepostError) -> bool:
        """Count one more; is it to be tried again without asking the restart strategy?"""
        if Reason.of(error).policy is not Policy.TOLERATED:
            return False
        self.failures += 1
        return self.failures <= self.most

    def reset(self) -> None:
        """An epoch came to its end."""
        self.failures = 0
