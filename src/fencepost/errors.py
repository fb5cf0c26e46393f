"""Every way fencepost refuses or stops, with what happened, whether the data is safe, and what to do.

Never put a row's value or a secret into an error: these texts are logged.

    FencepostError
    ├── Refused            before any data flowed; change something, start again
    │   ├── BadConfig          an argument or a Spark setting
    │   ├── GuaranteeTooHigh   the job asks for more than its weakest link gives
    │   ├── TargetRefused      the sink's target is not the one, or does not fit
    │   └── CheckpointRefused  the checkpoint is not this job's, or is damaged
    ├── Fenced             a newer driver took over: final, never retried
    ├── OperatorNeeded     the epoch is safe in the ledger, a person has to choose
    ├── GaveUp             it failed again and again, and the restart strategy allows no more
    └── Retryable          the epoch did not finish; starting again is right
        ├── EpochFailed        nothing of it is visible
        ├── InDoubt            decided, a sink does not answer
        └── RecoveryNeeded     decided, to be finished by recovery
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "LATER",
    "UNCHANGED",
    "BadConfig",
    "CheckpointRefused",
    "EpochFailed",
    "Fenced",
    "FencepostError",
    "GaveUp",
    "GuaranteeTooHigh",
    "InDoubt",
    "OperatorNeeded",
    "RecoveryNeeded",
    "Refused",
    "Retryable",
    "TargetRefused",
    "Where",
]


LATER = "Safe: what is decided is finished at the next start; what is not decided is not visible, and runs again."
"""Of a job that ended in the middle of something."""
UNCHANGED = "Safe: nothing was changed."
"""Of a command or a look that refuses before it does anything."""


@dataclass(frozen=True, slots=True)
class Where:
    """The place of an error; whatever is not known stays empty."""

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
    """The root. `code` is stable and may be matched; the sentences may change."""

    safe = "Nothing was written."

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
        self.where = where or Where()
        self.next = next
        if safe is not None:
            self.safe = safe
        super().__init__(code, what)

    def at(self, *, job: str | None = None, epoch: int | None = None, sink: str | None = None) -> FencepostError:
        """Fill in what a deeper layer could not know; never overwrite what it did."""
        self.where = Where(
            job=self.where.job or job,
            epoch=self.where.epoch if self.where.epoch is not None else epoch,
            sink=self.where.sink or sink,
            path=self.where.path,
        )
        return self

    def __str__(self) -> str:
        """Four lines: what, where, is the data safe, what next."""
        lines = [f"[{self.code}] {self.what}"]
        if place := str(self.where):
            lines.append(f"  where: {place}")
        lines.append(f"  data:  {self.safe}")
        lines.append(f"  next:  {self.next}")
        return "\n".join(lines)


class Refused(FencepostError):
    """Stopped before any data flowed."""

    safe = "Safe: nothing was read or written."


class BadConfig(Refused):
    """An argument or a Spark setting that cannot work; change it and start again."""


class GuaranteeTooHigh(Refused):
    """The job asks for a level that one of its links cannot give."""


class TargetRefused(Refused):
    """The sink's target was replaced, belongs to another lineage, or its columns do not fit."""


class CheckpointRefused(Refused):
    """The checkpoint belongs to another job, has no ledger, or is damaged."""

    safe = "Safe: the sinks hold every decided epoch once; nothing was changed."


class Fenced(FencepostError):
    """A newer driver owns the checkpoint. Final: retrying would only fence the other one."""

    safe = "Safe: this driver changed nothing after the other one took over."


class OperatorNeeded(FencepostError):
    """Going on by itself would mean guessing."""

    safe = "Safe: the decision is in the ledger; nothing will be guessed."


class GaveUp(FencepostError):
    """The restart strategy's budget is spent; the last failure is the cause."""

    safe = LATER


class Retryable(FencepostError):
    """Starting again is the right answer; a restart strategy may do it."""


class EpochFailed(Retryable):
    """The epoch was not decided; nothing of it is visible and it will run again."""

    safe = "Safe: the epoch was not decided, nothing of it is visible; it runs again from the same positions."


class InDoubt(Retryable):
    """A sink did not say whether a decided epoch is in; recovery will ask it again."""

    safe = "Safe: the epoch is decided and will be finished; the sink has to answer first."


class RecoveryNeeded(Retryable):
    """A decided epoch is waiting to be finished; only recovery may do it, never a second run of the plan."""

    safe = "Safe: the epoch is decided and will be finished from the ledger."
