"""Runs of a job for OpenLineage, made from its journal: what it read and wrote, and how far it came.

    started ─► START ─► RUNNING … (after a commit, now and then) ─► COMPLETE   stopped
                                                                    FAIL       failed, or its driver died
                                                                    ABORT      fenced

A run is one start of the query. Figures count from its start, so an event that is lost takes nothing with it. A thread
of its own reads the journal once a second: an epoch does nothing for this, and a server that is slow or gone does not
hold up the job. Never a row's value and never a secret.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
)
from openlineage.client.uuid import generate_static_uuid

from fencepost.contract import Dataset
from fencepost.errors import UNCHANGED, BadConfig, Where
from fencepost.observe.events import Event, Kind
from fencepost.observe.history import ranges_of
from fencepost.observe.journal import Follower
from fencepost.observe.registry import key_of
from fencepost.protocol.format import VERSION
from fencepost.protocol.records import Epoch
from fencepost.store import Place, store_at
from fencepost.store.retry import at_most
from fencepost.store.spark_log import SparkLog

LOOK_S: Final = 1.0
LAST_S: Final = 3.0
"""How long the end of a process waits for the server."""
PRODUCER: Final = f"urn:fencepost:{VERSION}"
NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"
ENDS: Final = {Kind.STOPPED: RunState.COMPLETE, Kind.FAILED: RunState.FAIL, Kind.FENCED: RunState.ABORT}
LOST: Final = "The driver ended without saying so, and another one took over."

log = logging.getLogger("fencepost")
Named = tuple[Mapping[str, Sequence[Dataset]], Mapping[str, Dataset]]
"""What each source reads, by its name or place in `offsets/N`; and where each sink writes."""


@attr.define
class EpochsRunFacet(RunFacet):
    """`fencepost_epochs`: which epochs this run has committed."""

    writer: int | None
    first: int | None
    last: int | None


@attr.define
class PositionsInputDatasetFacet(InputDatasetFacet):
    """`fencepost_positions`: from where to where this run has read a source, as Spark writes its offsets."""

    source: str
    begin: str | None
    end: str


def client_for(url: str | None, job: str) -> OpenLineageClient:
    """To the server at this address, or to where OpenLineage's own variables and file say."""
    config: dict[str, Any] = {}
    if url is not None:
        config["transport"] = {"type": "http", "url": url}
        if key := os.environ.get("OPENLINEAGE_API_KEY"):
            config["transport"]["auth"] = {"type": "api_key", "apiKey": key}
    try:
        return OpenLineageClient(config=config)
    except Exception as error:
        raise BadConfig(
            "bad_lineage",
            f"OpenLineage does not accept its settings ({type(error).__name__}).",
            where=Where(job=job),
            safe=UNCHANGED,
            next="Give the address of the server, job.lineage('http://host:5000'), or correct the OPENLINEAGE_ "
            "variables and openlineage.yml.",
        ) from error


def follow(job: str, where: Callable[[], Place], client: OpenLineageClient, every_s: float) -> LineageSender:
    """Send the runs that this process starts from now on, until it ends."""
    made = LineageSender(job, where, client, every_s)
    threading.Thread(target=made.run, name="fencepost-lineage", daemon=True).start()
    atexit.register(made.end)
    return made


@dataclass(slots=True)
class _Run:
    """One start of the query."""

    id: str
    writer: int | None
    pid: int
    first: int | None = None
    last: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    """By sink, of the epochs that are complete."""
    open: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """The same of those that are not, by epoch."""
    ranges: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    before: str | None = None
    """The offsets before its first epoch."""
    at: str = ""
    """When its newest epoch was complete."""
    is_told: bool = True
    """Was its newest epoch sent?"""


class LineageSender:
    """Follows the journal of one job, and sends what this process does."""

    def __init__(self, job: str, where: Callable[[], Place], client: OpenLineageClient, every_s: float) -> None:
        self._job = job
        self._where = where
        self._client = client
        self._every_s = every_s
        self._pid = os.getpid()
        self._began = time.time()
        self._named: Named | None = None
        self._follower: Follower | None = None
        self._waiting: list[Event] = []
        """Events that wait for the names."""
        self._mine: _Run | None = None
        self._other: _Run | None = None
        """Of another process, without an end so far."""
        self._complete: int | None = None
        """The newest epoch that anybody completed."""
        self._sent_s = -every_s
        self._failed = False
        self._over = threading.Event()
        self._one_looks = threading.Lock()

    def name(self, named: Named) -> None:
        """What the job reads and writes: known once the query is started, and waited for until then."""
        self._named = named

    def run(self) -> None:
        """Look again and again."""
        while not self._over.wait(LOOK_S):
            with suppress(Exception):  # an event less, and the job goes on
                self.look()

    def look(self) -> None:
        """Send what is new."""
        with self._one_looks:
            if self._follower is None:
                self._follower = Follower(self._where())
            self._waiting += self._follower.new()
            if self._named is None and not any(self._is_mine(one) and one.kind in ENDS for one in self._waiting):
                return
            events, self._waiting = self._waiting, []
            for event in events:
                self._take(event)
            mine = self._mine
            if mine is not None and not mine.is_told and time.monotonic() - self._sent_s >= self._every_s:
                self._send(RunState.RUNNING, mine, mine.at)

    def end(self) -> None:
        """Send what is left; a server that does not answer is not waited for."""
        self._over.set()

        def last() -> None:
            with suppress(Exception):
                self.look()
                self._client.close(LAST_S)

        ending = threading.Thread(target=last, daemon=True)
        ending.start()
        ending.join(LAST_S)

    def _is_mine(self, event: Event) -> bool:
        """By the time too: in a container every driver may have the same pid."""
        return event.pid == self._pid and datetime.fromisoformat(event.at).timestamp() >= self._began - 0.001

    def _take(self, event: Event) -> None:
        is_mine = self._is_mine(event)
        if event.kind is Kind.STARTED:
            self._start(event, is_mine=is_mine)
        elif event.kind in ENDS and is_mine:
            if self._mine is None and event.kind is not Kind.STOPPED:  # it did not come as far as to take over
                self._start(event, is_mine=True)
            if self._mine is not None:
                text = None if event.kind is Kind.STOPPED else f"{event.code}: {event.what}"
                self._send(ENDS[event.kind], self._mine, event.at, text)
                self._mine = None
        elif event.kind in ENDS and self._other is not None and event.pid == self._other.pid:
            self._other = None
        elif is_mine and self._mine is not None:
            self._count(self._mine, event)
        if event.kind is Kind.COMPLETE and not event.again:
            self._complete = event.epoch

    def _start(self, event: Event, *, is_mine: bool) -> None:
        at = datetime.fromisoformat(event.at)
        told = f"{key_of(self._where())} {event.writer} {event.pid}"
        run = _Run(str(generate_static_uuid(at, told.encode())), event.writer, event.pid)
        if not is_mine:
            self._other = run
            return
        if event.kind is Kind.STARTED:
            for lost in (self._other, self._mine):
                if lost is not None:
                    self._send(RunState.FAIL, lost, event.at, LOST)
            self._other = None
        self._mine = run
        self._send(RunState.START, run, event.at)

    def _count(self, run: _Run, event: Event) -> None:
        if event.epoch is None:
            return
        if event.kind is Kind.COMMITTED and event.sink is not None:
            open_ = run.open[event.epoch]
            open_[event.sink] = open_.get(event.sink, 0) + (event.rows or 0)
        elif event.kind is Kind.COMPLETE:
            rows = run.open.pop(event.epoch, {})
            if event.again and (not rows or event.epoch == self._complete):
                return  # nothing was left for recovery to do
            for sink, many in rows.items():
                run.rows[sink] = run.rows.get(sink, 0) + many
            run.first = event.epoch if run.first is None else run.first
            run.last, run.at, run.is_told = event.epoch, event.at, False

    def _look_up(self, run: _Run) -> None:
        """How far it has read; what cannot be read now stays as it was."""
        if run.is_told or run.first is None or run.last is None:
            return
        with suppress(Exception), at_most(LAST_S):
            spark_log = SparkLog(store_at(self._where()))
            if run.before is None and run.first > 0:
                run.before = spark_log.read("offsets", Epoch(run.first - 1))
            found = ranges_of(run.before, spark_log.read("offsets", Epoch(run.last)), first=run.first == 0)
            run.ranges = found or run.ranges

    def _send(self, state: RunState, run: _Run, at: str, error: str | None = None) -> None:
        self._look_up(run)
        run.is_told = True
        if state is RunState.RUNNING:
            self._sent_s = time.monotonic()
        facets: dict[str, RunFacet] = {
            "fencepost_epochs": EpochsRunFacet(run.writer, run.first, run.last, producer=PRODUCER)
        }
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "PYTHON", producer=PRODUCER)
        kind = job_type_job.JobTypeJobFacet("STREAMING", "FENCEPOST", "JOB", producer=PRODUCER)
        event = RunEvent(
            eventTime=at,
            eventType=state,
            run=Run(run.id, facets),
            job=Job(os.environ.get(NAMESPACE) or "default", self._job, {"jobType": kind}),
            inputs=self._inputs(run),
            outputs=self._outputs(run),
            producer=PRODUCER,
        )
        try:
            self._client.emit(event)
            self._failed = False
        except Exception as problem:  # noqa: BLE001 - whatever it is, the job goes on
            if not self._failed:
                self._failed = True
                text = "job %s: OpenLineage's server did not take an event (%s); the job goes on without it."
                log.warning(text, self._job, type(problem).__name__)

    def _inputs(self, run: _Run) -> list[InputDataset]:
        """Each dataset once, whatever number of branches reads it."""
        found: dict[Dataset, dict[str, InputDatasetFacet]] = {}
        for source, datasets in (self._named or ({}, {}))[0].items():
            for one in datasets:
                facets = found.setdefault(one, {})
                if source in run.ranges and not facets:
                    begin, end = run.ranges[source]
                    facets["fencepost_positions"] = PositionsInputDatasetFacet(source, begin, end, producer=PRODUCER)
        return [InputDataset(one.namespace, one.name, facets) for one, facets in found.items()]

    def _outputs(self, run: _Run) -> list[OutputDataset]:
        """Each dataset once, with the rows of all sinks that write to it."""
        rows: dict[Dataset, int] = {}
        for sink, one in (self._named or ({}, {}))[1].items():
            rows[one] = rows.get(one, 0) + run.rows.get(sink, 0)
        return [OutputDataset(one.namespace, one.name, _statistics(run, many)) for one, many in rows.items()]


def _statistics(run: _Run, rows: int) -> dict[str, OutputDatasetFacet]:
    """Nothing before the first epoch, or if the guarantee has no commits that are noted by sink."""
    if run.last is None or not run.rows:
        return {}
    made = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows, producer=PRODUCER)
    return {"outputStatistics": made}
