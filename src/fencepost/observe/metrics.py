"""Figures of jobs for Prometheus, from what their checkpoints hold: nothing is counted on an epoch's path.

    Tally      counts the events of one journal, each once, over rotations and restarts of the driver
    Metrics    what a scrape gets: the counts, and what ledger, pulse and sinks say at that moment
    serve      an address of its own; `fencepost ui` has the same under /metrics

A counter begins with what the journal still has, and only grows while this process lives. Never an epoch as a label,
and never a row's value.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import start_http_server
from prometheus_client.registry import Collector

from fencepost.errors import UNCHANGED, BadConfig, FencepostError
from fencepost.observe.archive import JobArchive, Summary
from fencepost.observe.events import Event, Kind
from fencepost.observe.health import DOUBT
from fencepost.observe.history import PHASES
from fencepost.observe.journal import Follower
from fencepost.observe.registry import key_of
from fencepost.protocol.format import VERSION
from fencepost.store import Place, RemotePath
from fencepost.store.parts import state_sizes
from fencepost.store.retry import Aside, at_most

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""In seconds."""
PATIENCE_S: Final = 3.0
"""For a remote store; a scraper waits ten."""
STATE_EVERY_S: Final = 30.0
"""How often the files of the state are measured."""
CONDITIONS: Final = ("running", "starting", "waiting", "silent", "stopped", "failed", "dead", "unknown")
DIED: Final = "driver_died"
"""The most frequent cause of a restart."""
LABELS: Final = ("job", "checkpoint")

Jobs = Callable[[], Iterable[tuple[str, Place]]]
"""The names and the checkpoints that there are now."""
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclass(slots=True)
class Buckets:
    """How long something took, counted by size."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    @property
    def cumulated(self) -> list[tuple[str, float]]:
        """As Prometheus wants them."""
        found, before = [], 0
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], self.counts, strict=True):
            before += count
            found.append((bound, float(before)))
        return found


@dataclass(slots=True)
class Tally:
    """The events of one job, counted."""

    took: dict[str, Buckets] = field(default_factory=lambda: defaultdict(Buckets))
    """By phase; "all" from an epoch's rows to their commit."""
    recovery: Buckets = field(default_factory=Buckets)
    failed: Counter[str] = field(default_factory=Counter)
    """Epochs that were tried again or failed, by that word."""
    commits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By sink and result."""
    restarts: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    """Rows by sink."""
    dead: Counter[str] = field(default_factory=Counter)
    """Those of them that are dead letters."""
    fenced: int = 0
    aborted: int = 0
    _held: dict[str, int | None] = field(default_factory=dict)
    """By sink, the newest epoch that it holds whole."""

    def take(self, event: Event) -> None:
        """Count one."""
        kind = event.kind
        if (phase := PHASES.get(kind)) is not None and event.seconds is not None:
            self.took[phase].add(event.seconds)
        if kind is Kind.COMPLETE and not event.again:
            self.took["all"].add(event.seconds or 0.0)
        elif kind is Kind.COMMITTED:
            self._take_commit(event, event.sink or "")
        elif kind in {Kind.TRIED_AGAIN, Kind.FAILED}:
            self.failed[kind.value] += 1
        elif kind is Kind.RESTARTED:
            self.restarts[event.code or "unknown"] += 1
        elif kind is Kind.RECOVERED:
            self.recovery.add(event.seconds or 0.0)
        self.fenced += kind is Kind.FENCED
        self.aborted += kind is Kind.ABORTED

    def _take_commit(self, event: Event, sink: str) -> None:
        """Recovery commits the newest decided epoch again: what the sink already held is not counted twice."""
        known = self._held.get(sink) == event.epoch
        self.commits[sink, "already" if known else "ok"] += event.units or 0
        rows = 0 if known else event.rows or 0
        self.written[sink] += rows
        self.dead[sink] += rows if event.dead else 0
        if event.what:
            self.commits[sink, "retried" if DOUBT in event.what else "failed"] += 1
        else:
            self._held[sink] = event.epoch


class _Measured:
    """One job, from one scrape to the next."""

    def __init__(self, name: str, where: Place) -> None:
        self.name = name
        self.archive = JobArchive(where)
        self.tally = Tally()
        self.rewrites = 0
        self._follower = Follower(where)
        self._record = 0
        self._state: tuple[float, int | None] = (0.0, None)
        self._aside = Aside(f"measure-{key_of(where)}", PATIENCE_S) if isinstance(where, RemotePath) else None
        self._asked: Future[Summary | None] | None = None
        self._began = 0.0

    def begin(self) -> None:
        """Ask a remote store; `look` has the answer."""
        if self._aside is not None and (self._asked is None or self._asked.done()):
            self._began = time.monotonic()
            self._asked = self._aside.begin(self._read)

    def look(self) -> Summary | None:
        """What is known now; None if the checkpoint cannot be read, or its store does not answer in time."""
        for event in self._follower.new():
            self.tally.take(event)
        if self._asked is None:
            return self._read()
        try:
            return self._asked.result(max(0.0, self._began + PATIENCE_S - time.monotonic()))
        except TimeoutError:
            return None

    def _read(self) -> Summary | None:
        try:
            with at_most(PATIENCE_S):
                found = self.archive.summary(recent=1)
                self.name = found.health.job
                if found.records is not None:
                    self.rewrites += self.archive.rewrites(self._record, found.records)
                    self._record = found.records
        except (FencepostError, OSError):
            return None
        return found

    def state_bytes(self, epoch: int | None) -> int | None:
        """Of the files that this epoch needs; not asked of a remote store, which would take a request a file."""
        at, known = self._state
        if epoch is None or isinstance(self.archive.root, RemotePath) or time.monotonic() - at < STATE_EVERY_S:
            return known
        try:
            state, _ = self.archive.plan()
            known = sum(state_sizes(self.archive.root, epoch, state).values())
        except (FencepostError, OSError):
            known = None
        self._state = (time.monotonic(), known)
        return known


class Metrics(Collector):
    """What a scrape gets. May be asked by several threads."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._change = threading.Lock()
        self._measured: dict[str, _Measured] = {}

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self.registry)

    @property
    def registry(self) -> CollectorRegistry:
        """With these figures alone."""
        made = CollectorRegistry(auto_describe=False)
        made.register(self)
        return made

    def describe(self) -> Iterator[Family]:
        """Nothing: a scrape says what there is."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """All of it, now."""
        with self._change:
            found = _Families()
            jobs = [(key_of(where), name, where) for name, where in self._jobs()]
            for key, name, where in jobs:  # all are asked before the first one is waited for
                if key not in self._measured:
                    self._measured[key] = _Measured(name, where)
                self._measured[key].begin()
            for key, _, _ in jobs:
                one = self._measured[key]
                summary = one.look()
                found.of = (one.name, key)
                _add_counts(found, one, () if summary is None else [sink.name for sink in summary.sinks])
                _add_now(found, one, summary)
        build = GaugeMetricFamily("fencepost_build_info", "The version.", labels=["version"])
        build.add_metric([VERSION], 1)
        yield from (build, *found.plain.values(), *found.buckets.values())


def serve(metrics: Metrics, address: str) -> int:
    """Answer scrapes in a thread of its own; `PORT` is one of this machine alone, `HOST:PORT` another. The port."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise BadConfig(
            "bad_metrics",
            f"{address!r} is not a port.",
            safe=UNCHANGED,
            next="Give PORT for this machine alone, or HOST:PORT (0.0.0.0:9108 for every machine).",
        )
    try:
        server, _ = start_http_server(int(port), addr=host or "127.0.0.1", registry=metrics.registry)
    except OSError as error:
        raise BadConfig(
            "port_in_use",
            f"Metrics cannot be served at {address}: {error.strerror or error}.",
            safe=UNCHANGED,
            next="Choose another port.",
        ) from error
    return int(server.server_port)


COUNTERS: Final = {
    "epochs": ("Epochs: complete, tried again, failed.", ("outcome",)),
    "commits": (
        "Units that a sink committed (ok) or already held, and commits that it lost or did not answer.",
        ("sink", "result"),
    ),
    "restarts": ("Restarts of the query or the driver, by error code.", ("cause",)),
    "rows": ("Rows that sinks committed (out).", ("direction", "sink")),
    "dead_letters": ("Rows that sinks committed as dead letters.", ("sink",)),
    "fenced": ("Drivers that a newer one fenced.", ()),
    "rewrites": ("Times that a lost transaction was written again from the kept rows.", ()),
    "aborted_units": ("Units that no decision named and that were undone.", ()),
}
GAUGES: Final = {
    "checkpoint_readable": ("1 if the checkpoint can be read, and its ledger is intact.", ()),
    "job_condition": ("1 for the condition that the job is in.", ("condition",)),
    "epoch_last_committed": ("The newest epoch that is complete.", ()),
    "epoch_last_committed_timestamp_seconds": ("When it was complete.", ()),
    "commits_pending": ("Sinks that do not hold all that is decided for them.", ()),
    "transaction_deadline_seconds": ("Until a sink's open transaction times out; negative: it has.", ("sink",)),
    "transaction_timeout_seconds": ("The timeout of that transaction.", ("sink",)),
    "source_lag_records": ("Records that a topic has beyond the newest epoch, while the job runs.", ("source",)),
    "standby_ready": ("1 if a standby is warm.", ()),
    "state_bytes": ("Bytes of state that the newest epoch needs.", ()),
    "writer": ("The number of the newest driver.", ()),
}
HISTOGRAMS: Final = {
    "epoch_duration_seconds": ("How long the phases of epochs took; all: from rows to commit.", ("phase",)),
    "recovery_duration_seconds": ("How long recoveries took.", ()),
}


class _Families:
    """Every name with its values, of one job after the other."""

    def __init__(self) -> None:
        self.of = ("", "")
        """The job's name and its checkpoint's key."""
        self.plain: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self.buckets: dict[str, HistogramMetricFamily] = {}
        for name, (text, labels) in COUNTERS.items():
            self.plain[name] = CounterMetricFamily(f"fencepost_{name}", text, labels=[*LABELS, *labels])
        for name, (text, labels) in GAUGES.items():
            self.plain[name] = GaugeMetricFamily(f"fencepost_{name}", text, labels=[*LABELS, *labels])
        for name, (text, labels) in HISTOGRAMS.items():
            self.buckets[name] = HistogramMetricFamily(f"fencepost_{name}", text, labels=[*LABELS, *labels])

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """One value; None is left out."""
        if value is not None:
            self.plain[name].add_metric([*self.of, *labels], value)

    def add_buckets(self, name: str, buckets: Buckets, *labels: str) -> None:
        """One histogram."""
        self.buckets[name].add_metric([*self.of, *labels], buckets.cumulated, buckets.total)


def _add_counts(found: _Families, one: _Measured, sinks: Iterable[str]) -> None:
    """A counter is there before there is anything to count: Prometheus sees no increase in a series that begins."""
    tally = one.tally
    for phase in (*PHASES.values(), "all"):
        found.add_buckets("epoch_duration_seconds", tally.took[phase], phase)
    found.add_buckets("recovery_duration_seconds", tally.recovery)
    for kind in (Kind.TRIED_AGAIN, Kind.FAILED):
        found.add("epochs", tally.failed[kind.value], kind.value)
    for (sink, result), count in sorted(tally.commits.items()):
        found.add("commits", count, sink, result)
    for cause, count in sorted(({DIED: 0} | tally.restarts).items()):
        found.add("restarts", count, cause)
    for sink in sorted({*tally.written, *sinks}):
        found.add("rows", tally.written[sink], "out", sink)
        found.add("dead_letters", tally.dead[sink], sink)
    found.add("fenced", tally.fenced)
    found.add("rewrites", one.rewrites)
    found.add("aborted_units", tally.aborted)


def _add_now(found: _Families, one: _Measured, summary: Summary | None) -> None:
    found.add("checkpoint_readable", float(summary is not None and summary.health.damage is None))
    if summary is None:
        return
    health = summary.health
    for condition in CONDITIONS:
        found.add("job_condition", float(condition == health.condition), condition)
    # By its number, not by the journal, which forgets: so it is what the ledger says.
    found.add("epochs", 0 if health.epoch is None else max(0, health.epoch + 1 - summary.first), "complete")
    found.add("epoch_last_committed", health.epoch)
    found.add("epoch_last_committed_timestamp_seconds", health.epoch_at)
    found.add("commits_pending", sum(not sink.meets for sink in summary.sinks))
    for sink in summary.sinks:
        found.add("transaction_deadline_seconds", sink.deadline_s, sink.name)
        found.add("transaction_timeout_seconds", sink.timeout_s, sink.name)
    for topic, behind in health.lag.items():
        found.add("source_lag_records", behind, topic)
    found.add("standby_ready", float(health.standby_is_warm))
    found.add("state_bytes", one.state_bytes(health.epoch))
    found.add("writer", health.writer)
