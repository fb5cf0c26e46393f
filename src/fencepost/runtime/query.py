"""One running query with its driver and its bridge: watching it, and ending it cleanly."""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from fencepost import connectors
from fencepost.errors import Fenced, FencepostError
from fencepost.observe import commands, registry
from fencepost.observe.events import DELETING, Kind
from fencepost.observe.heartbeat import PULSE, Beat, this_driver
from fencepost.observe.journal import Observer
from fencepost.runtime.driver import Driver
from fencepost.spark import progress, spark_session
from fencepost.spark.bridge import Bridge
from fencepost.spark.diagnosis import from_spark, jvm_lost
from fencepost.spark.heap_lock import StateLock
from fencepost.store import RemotePath, parts, place, store_at
from fencepost.store.path import is_remote
from fencepost.store.refusal import unusable
from fencepost.store.retry import Aside

log = logging.getLogger("fencepost")
PULSE.ask_engine = spark_session.ask_jvm  # now, not at the first query: a JVM may freeze before that

ABORT_S = 5.0
LAG_S = 0.2
"""How long a heartbeat waits for the JVM to say how far the source is ahead; else it says what it last knew."""


_lag = Aside("lag")
"""One for all queries of the process: they have one JVM."""


class Run:
    """One running query with its driver and bridge."""

    def __init__(
        self,
        query: Any,
        driver: Driver,
        bridge: Bridge,
        observer: Observer,
        lock: StateLock | None = None,
        *,
        awaited: Sequence[str] = (),
        reads_once: bool = True,
    ) -> None:
        self.query = query
        self.reads_once = reads_once
        """Is each source read by one scan? Spark counts its records once for every scan."""
        self._driver = driver
        self._observer = observer
        self._bridge = bridge
        self._lock = lock
        self._awaited = awaited
        self._ended = False
        self._one_ends = threading.Lock()
        self._jvm_is_gone = False
        self._lag: dict[str, int] = {}
        self._deletes = False
        """Will the checkpoint be deleted at the end?"""

    def carries_one_quiet_epoch(self) -> bool:
        """Spark takes only the first range from its log, so the query ends after one epoch if more follow."""
        left = self._driver.quiet_left
        if left < 2:
            return False
        while self._driver.quiet_left == left and not self.wait(0.05):
            pass
        self.stop()
        return True

    @property
    def can_go_on(self) -> bool:
        """Can the query be restarted in this process?"""
        return not self._jvm_is_gone

    def wait(self, seconds: float) -> bool:
        """Has the query ended? `end` says how. Also ends an epoch that exceeded its timeout."""
        try:
            if self._driver.expire():
                self.query.stop()
            return spark_session.ended(self.query, seconds)
        except spark_session.JvmGone:
            self._jvm_is_gone = True
            return True

    def stop(self) -> None:
        """Let the epoch in flight finish, then end the query."""
        try:
            self._driver.close()
        except FencepostError:
            self.cancel()
            raise
        self.cancel()

    def cancel(self, *, delete: bool = False) -> None:
        """End the query now, and then delete the checkpoint if that is wanted and nothing needs it any more."""
        self._deletes = delete
        self._driver.ending.set()
        self.query.stop()
        self.end()
        if delete:
            self._delete_checkpoint()

    def _delete_checkpoint(self) -> None:
        """After a clean end: delete the checkpoint if nothing needs it any more; otherwise keep it and say why."""
        job, path = self._driver.job, self._driver.checkpoint
        if (why_not := self._driver.seal()) is not None:
            kept = "job %s: the checkpoint %s was kept, because %s. Start the job once more, then cancel it."
            log.warning(kept, job, path, why_not)
            self._observer.note(Kind.STOPPED)
            return
        if is_remote(path):
            store_at(path).delete("")  # it is sealed: even half deleted, nobody continues from it
            registry.forget(RemotePath(path))
        else:
            doomed = Path(path).with_name(f".{Path(path).name}.{uuid.uuid4().hex}.deleted")
            Path(path).rename(doomed)  # at once: half a checkpoint would look like a damaged one
            shutil.rmtree(doomed, ignore_errors=True)
        log.info("job %s: cancelled, checkpoint %s deleted", job, path)

    def abort(self) -> None:
        """End the query now and wait for no sink: what one still holds ends with this process, or is swept later."""

        def try_to() -> None:
            with suppress(Exception):  # there is nobody left to tell
                self.cancel()

        ending = threading.Thread(target=try_to, daemon=True)
        ending.start()
        ending.join(ABORT_S)

    def ask(self, wish: commands.Wish) -> None:
        """Ask as somebody from outside would: for a callback, which must not wait for the thread that calls it."""
        commands.leave(self._driver.checkpoint, wish, self._driver.writer)

    def wish(self) -> commands.Wish | None:
        """What somebody outside asks this driver to do."""
        return commands.find(self._driver.checkpoint, self._driver.writer)

    def beat(self) -> Beat | None:
        """This driver's heartbeat; None while an epoch is stuck in a sink."""
        if (driver := self._driver).is_stuck:
            return None
        # Aside, because a JVM that pauses for a long collection must not hold up the pulse.
        lag = _lag.ask(partial(progress.lag_by_topic, self.query), LAG_S)
        self._lag = self._lag if lag is None else lag
        return this_driver(driver.job, driver.writer, driver.finished, self._awaited, driver.rest_s, lag=self._lag)

    def end_by_itself(self, cancel: Callable[[], None] | None = None) -> None:
        """Clean up when the query ends. Whoever holds the query sees Spark's error; ours goes to the log."""

        def wait_and_end() -> None:
            try:
                while not self.wait(1):
                    if (wish := self.wish()) is not None:
                        self.stop() if wish == "stop" else (cancel or self.cancel)()
                self.end()
            except FencepostError as error:
                log.error("%s", error)  # noqa: TRY400 - four lines, as everywhere; the query has the trace

        threading.Thread(target=wait_and_end, name="fencepost-end", daemon=True).start()

    def end(self) -> None:
        """The query is over: record what is done, release everything, raise what ended it.

        A second caller waits for the first; only the first gets the error.
        """
        with self._one_ends:
            if not self._ended:
                self._ended = True
                try:
                    self._end()
                    self._observer.note(Kind.STOPPED, what=DELETING if self._deletes else None)
                    commands.take_back(self._driver.checkpoint, self._driver.writer)
                except FencepostError as error:  # a stop request stays, so that nobody restarts the job
                    self._observer.note_failure(error)
                    raise
                finally:
                    PULSE.remove(self._driver.checkpoint, self.beat)

    def _end(self) -> None:
        failed = None if self._jvm_is_gone else self.query.exception()
        try:
            self._driver.close()
        except FencepostError:
            if not self._jvm_is_gone:  # a remote checkpoint is reached through it
                raise
        finally:
            if not self._jvm_is_gone:
                self._bridge.close()
                self._release()
        if self._jvm_is_gone:
            raise jvm_lost(self._driver.job)
        if isinstance(self._driver.failure, Fenced):
            raise self._driver.failure from None  # the symptom that led to it would only mislead
        if self._driver.failure is not None:
            raise self._driver.failure
        if failed is not None and not self._driver.turned_away:
            # Spark may be the first to trip over what a newer driver did to its log or staged files.
            if (fenced := self._driver.fenced()) is not None:
                raise fenced from failed
            job = self._driver.job
            try:
                parts.check_newest(place(self._driver.checkpoint), self._driver.book.state, str(failed))
            except OSError as error:  # the disk may be why Spark failed
                raise unusable(error, job, str(self._driver.checkpoint)) from failed
            raise connectors.explain(str(failed), job) or from_spark(failed, job) from failed

    def _release(self) -> None:
        if self._lock is not None and not self._lock.release(str(self.query.runId)):
            job = self._driver.job
            log.warning("job %s: tasks of the query are still running; its state stays locked until they end", job)
