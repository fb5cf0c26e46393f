"""Has the running epoch exceeded its timeout? Judged by the age of its barrier, on this machine's clock alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.errors import EpochFailed, Where
from fencepost.store import place
from fencepost.store.spark_log import SparkLog

LOOKS = 20
"""How often a remote store is asked for the barrier within one timeout: each look costs requests."""


@dataclass(slots=True)
class Deadline:
    """The timeout of a job's epochs."""

    job: str
    root: str
    log: SparkLog
    timeout_s: float
    began_s: float = field(default_factory=time.time)
    """When this driver started, or the commit of the epoch before was over: a barrier may be older."""
    _seen: tuple[int, float] = (-1, 0.0)
    """On a remote store: the newest barrier, and when we first saw it. The store's clock may differ from ours."""
    _looked: float = 0.0

    def begin(self) -> None:
        """Count from now at the earliest."""
        self.began_s = time.time()
        self._seen = self._seen[0], time.monotonic()

    def open_for(self, finished: int | None) -> tuple[int, float]:
        """The running epoch (-1 if none) and the seconds since its barrier, or since `began_s` if that is later."""
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
        """The error, if the running epoch has exceeded its timeout."""
        epoch, took = self.open_for(finished)
        if epoch < 0 or epoch == finished or took < self.timeout_s:
            return None
        return EpochFailed(
            "epoch_timeout",
            f"The epoch exceeded its timeout of {self.timeout_s:g} s: it was not decided {took:.1f} s after its "
            "barrier.",
            where=Where(job=self.job, epoch=epoch),
            next="Find out what is slow (the tasks in Spark's UI, the sink's vote), or raise the checkpoint's "
            "`timeout`; then start the job again.",
        )
