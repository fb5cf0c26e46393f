"""Does the epoch that runs take too long? By its barrier's age, on the clock of this machine alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.errors import EpochFailed, Where
from fencepost.ledger import place
from fencepost.spark.checkpoint import SparkLog

LOOKS = 20
"""On a remote store, so many looks at the barrier within one timeout: each costs requests."""


@dataclass(slots=True)
class Deadline:
    """The timeout of a job's epochs."""

    job: str
    root: str
    log: SparkLog
    timeout_s: float
    began_s: float = field(default_factory=time.time)
    """Our start: a replayed epoch's barrier is old."""
    _seen: tuple[int, float] = (-1, 0.0)
    """On a remote store: the newest barrier, and when we saw it first. The store's own clock may be another."""
    _looked: float = 0.0

    def open_for(self, finished: int | None) -> tuple[int, float]:
        """The epoch that runs, and its seconds since its barrier or our start; -1 if none runs."""
        barrier = place(self.root) / "offsets"
        if not isinstance(barrier, Path):
            return self._seen_for(finished)
        epoch = self._running(finished)
        try:
            return epoch, time.time() - max(self.began_s, (barrier / str(epoch)).stat().st_mtime)
        except FileNotFoundError:
            return epoch, 0.0

    def _seen_for(self, finished: int | None) -> tuple[int, float]:
        now = time.monotonic()
        if now - self._looked > self.timeout_s / LOOKS:
            self._looked = now
            epoch = self._running(finished)
            if epoch != self._seen[0]:
                self._seen = epoch, now
        return self._seen[0], now - self._seen[1]

    def _running(self, finished: int | None) -> int:
        begun = self.log.names("offsets")[-1:]
        if not begun or begun[0] == finished or begun[0] in self.log.names("commits")[-1:]:
            return -1
        return begun[0]

    def missed(self, finished: int | None) -> EpochFailed | None:
        """What to say if the epoch that runs takes too long."""
        epoch, took = self.open_for(finished)
        if epoch < 0 or epoch == finished or took < self.timeout_s:
            return None
        return EpochFailed(
            "epoch_timeout",
            f"The epoch was not decided {took:.1f} s after its barrier, and the timeout is {self.timeout_s:g} s.",
            where=Where(job=self.job, epoch=epoch),
            next="See what is slow (the tasks in Spark's UI, the sink's vote), or raise the checkpoint's timeout; then "
            "start the job again.",
        )
