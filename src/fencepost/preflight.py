"""Everything that a start would refuse, all of it at once and with nothing changed: `fencepost check`.

Goes through what `Job.run` goes through before its first epoch, and goes on after a refusal. Never takes over a
checkpoint, makes no table, no folder and no file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost import beginning, guarantee, perform
from fencepost.beginning import Settings
from fencepost.checkpoints import doctor, reader
from fencepost.driver import this_process
from fencepost.errors import FencepostError
from fencepost.guarantee import Link, Report
from fencepost.job import Job
from fencepost.kafka import Kafka
from fencepost.ledger import Place, Store, place, store_at
from fencepost.observe.pulse import exists
from fencepost.perform import Performer
from fencepost.protocol import effects as e
from fencepost.protocol.epoch import SinkFacts
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch, Lineage, SinkRecord
from fencepost.protocol.recover import Start, begin
from fencepost.sinks.contract import OutputMode, Sink
from fencepost.sinks.kafka.sink import LONGEST_MS
from fencepost.sinks.rehearsal import check_can_write
from fencepost.spark import branches, inspect, keyed, named, poison, session, topics
from fencepost.spark.checkpoint import SparkLog
from fencepost.supervise.reasons import Tolerance
from fencepost.times import now, seconds
from fencepost.unusable import unusable

SHORT_MS = 60_000
"""A transaction of Kafka's that may last less than this is likely to be dropped some day."""
ONLY_READS = (e.ReadIdentity, e.Names, e.Read, e.LogNames, e.LogRead)
"""Effects that a look may have done."""


@dataclass(slots=True)
class Findings:
    """What a look at one job found."""

    job: str
    report: Report | None = None
    """The guarantee; None if it could not be told."""
    problems: list[FencepostError] = field(default_factory=list)
    """Each would stop a start."""
    notes: list[str] = field(default_factory=list)
    """Worth knowing, and no reason to refuse."""

    @property
    def links(self) -> tuple[Link, ...]:
        """Of the report, if there is one."""
        return () if self.report is None else self.report.links

    @contextmanager
    def step(self) -> Iterator[None]:
        """Note a refusal, and go on."""
        try:
            yield
        except FencepostError as error:
            error.at(job=self.job)
            if str(error) not in map(str, self.problems):
                self.problems.append(error)


def look(job: Job) -> Findings:
    """Find everything."""
    found = Findings(job.name)
    with found.step():
        found.report = job.check()
        found.notes += found.report.notes
    if not job._branches.keys() - job._dead:
        return found
    for link in found.links:
        with found.step():
            guarantee.check(job._guarantee, [link], job=job.name)
    frames, sinks, chosen = job.frames, job.sinks, job._settings(Tolerance())
    _look_at_plan(job, chosen, frames, found)
    targets = _look_at_targets(chosen, frames, sinks, found)
    formats = _look_at_formats(job, chosen, frames, sinks, found)
    _look_at_checkpoint(chosen, targets, formats, sinks, found)
    _look_at_sources(job, chosen, frames, found)
    found.notes += _timing(job, sinks)
    return found


def _look_at_plan(job: Job, chosen: Settings, frames: Mapping[str, Any], found: Findings) -> None:
    writer = None
    with found.step():
        whole = branches.union(job._written_in_tasks(frames))
        writer = job._with_interval(whole.writeStream.outputMode(chosen.mode))
        inspect.check_plan(whole, chosen.mode, job.name)
    with found.step():
        beginning.check_not_running(job.spark, job.name)
    with found.step():
        poison.proof(job.spark, frames, job.name)
    if writer is not None:
        with found.step():
            keyed.paces(frames, writer, job.name)
    with found.step():
        jar = job.bridge != "foreach_batch" and session.bring_jar(job.spark)
        beginning.bridge(job.spark, chosen, jar=jar)


def _look_at_targets(
    chosen: Settings, frames: Mapping[str, Any], sinks: Mapping[str, Sink], found: Findings
) -> dict[str, str | None]:
    """The identity of every target; None where that could not be told."""
    modes = {name: inspect.branch_mode(frame, chosen.mode) for name, frame in frames.items()}
    targets: dict[str, str | None] = dict.fromkeys(sinks)
    for name, sink in sinks.items():
        with found.step():
            beginning.check_modes({name: modes[name]}, {name: sink}, chosen.job)
            schema = beginning.schemas({name: frames[name]}, chosen.job)[name]
            targets[name] = _rehearse(sink, schema, modes[name], chosen.job, found)
    return targets


def _rehearse(sink: Sink, schema: Any, mode: OutputMode, job: str, found: Findings) -> str | None:
    opened = sink.session(job)
    try:
        rehearsal = opened.rehearse(schema, mode)
    except FencepostError as error:
        raise error.at(sink=sink.name) from error.__cause__
    finally:
        opened.close()
    if rehearsal is None:
        found.notes.append(f"sink {sink.name}: its target was not looked at, for that could change it")
        return None
    if rehearsal.makes:
        found.notes.append(f"sink {sink.name}: the first start makes {', '.join(rehearsal.makes)}")
    return rehearsal.identity


def _look_at_formats(
    job: Job, chosen: Settings, frames: Mapping[str, Any], sinks: Mapping[str, Sink], found: Findings
) -> Mapping[str, str]:
    formats: Mapping[str, str] = {}
    with found.step(), _readable(chosen):
        formats = beginning.formats(job.spark, frames, SparkLog(_ReadOnly(store_at(chosen.checkpoint))), chosen)
        keyed.check_beside(formats, frames, job.name)
    with found.step():
        beginning.check_fate(chosen, sinks)
    return formats


def _look_at_checkpoint(
    chosen: Settings,
    targets: Mapping[str, str | None],
    formats: Mapping[str, str],
    sinks: Mapping[str, Sink],
    found: Findings,
) -> None:
    root = place(chosen.checkpoint)
    if isinstance(root, Path):  # what a remote store lets us do is tried at the start, for a trial writes
        with found.step(), _readable(chosen):
            check_can_write(root)
    state = _ledger(root)
    known = state.sinks if state else {}
    records = {
        name: known[name]
        if targets[name] is None and name in known
        else SinkRecord(sink.capabilities.shape, targets[name] or "")
        for name, sink in sinks.items()
    }
    start = Start(
        lineage=Lineage(
            job=chosen.job, guarantee=chosen.guarantee.word, first_epoch=Epoch(0), sinks=records, formats=formats
        ),
        sinks=tuple(SinkFacts(name, sink.capabilities.perishable) for name, sink in sinks.items()),
        writer=this_process(),
        new_id="",
        clock=now,
        adopt=chosen.adopt,
        sinks_changed=chosen.sinks_changed,
    )
    with found.step(), _readable(chosen):
        store = _ReadOnly(store_at(root))
        _until_it_would_write(begin(start), Performer(chosen.job, store, SparkLog(store), {}))
    if state is None:
        return
    with found.step(), _readable(chosen):
        doctor.check_newest(root, state)
    if state.driver and state.driver.host == socket.gethostname() and _lives(state.driver.pid):
        found.notes.append(
            f"the checkpoint's driver may be running (process {state.driver.pid}): a start takes over from it"
        )


def _until_it_would_write(step: e.Step[Any], performer: Performer) -> None:
    """Recovery's own first steps: whatever it would refuse before it takes over, it refuses here."""
    answer: Any = None
    while True:
        try:
            effect = step.send(answer)
        except StopIteration:
            return
        if not isinstance(effect, ONLY_READS):
            step.close()
            return
        answer = perform._DO[type(effect)](performer, effect)


def _look_at_sources(job: Job, chosen: Settings, frames: Mapping[str, Any], found: Findings) -> None:
    sources = [source for frame in frames.values() for source in inspect.sources_of(frame)]
    topics_now: dict[str, set[str]] = {}
    for source in sources:
        with found.step():
            topics_now |= topics.find(job.spark, [source], job.name)
    state = _ledger(place(chosen.checkpoint))
    if state is None:
        return
    store = _ReadOnly(store_at(chosen.checkpoint))
    with found.step(), _readable(chosen):
        topics.check_same(store, (state.lineage_id, *reversed(state.lineage.ancestors)), topics_now, job.name)
    with found.step(), _readable(chosen):
        named.check_none_returns(store, sources, job.name)


def _timing(job: Job, sinks: Mapping[str, Sink]) -> list[str]:
    """Times that do not go together. They stop no start; they stop the job some night."""
    told = job._checkpoint
    limit, pause = seconds(told.timeout or ""), seconds(told.min_pause or "") or 0.0
    found = []
    for name, sink in sinks.items():
        if not isinstance(sink, Kafka):
            continue
        lasts = sink.transaction_timeout or LONGEST_MS / 1000
        if limit is not None and limit >= lasts:
            found.append(
                f"sink {name}: an epoch may take {limit:g} s (timeout), and the brokers drop its transaction after "
                f"{lasts:g} s (transaction_timeout); let the first be well below the second"
            )
        if lasts * 1000 < SHORT_MS:
            found.append(
                f"sink {name}: transaction_timeout is {lasts:g} s; an epoch and a restart have to fit into it, or the "
                "brokers drop what is decided" + (" (it is written again, from the kept rows)" * sink.keep_rows)
            )
    if limit is not None and pause >= limit:
        found.append(f"min_pause ({pause:g} s) is not below timeout ({limit:g} s): is that meant?")
    if limit is not None and limit < 1:
        found.append(f"timeout is {limit:g} s; Spark alone takes that long for an epoch now and then")
    return found


class _ReadOnly:
    """A store for checks that note what they saw."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def root(self) -> str:
        """The checkpoint's."""
        return self._store.root

    def create(self, name: str, data: bytes) -> bool:
        """Not now."""
        return self._store.read(name) is None

    def replace(self, name: str, data: bytes) -> None:
        """Not now."""

    def read(self, name: str) -> bytes | None:
        """As it is."""
        return self._store.read(name)

    def expect(self, names: Iterable[str]) -> None:
        """As it is."""
        self._store.expect(names)

    def stamp(self, name: str) -> str | None:
        """As it is."""
        return self._store.stamp(name)

    def list(self, folder: str) -> tuple[str, ...]:
        """As it is."""
        return self._store.list(folder)

    def sweep(self, folder: str) -> None:
        """Not now."""

    def delete(self, name: str) -> None:
        """Not now."""

    def unlink(self, name: str) -> None:
        """Not now."""


@contextmanager
def _readable(chosen: Settings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(error, chosen.job, chosen.checkpoint) from error


def _ledger(root: Place) -> State | None:
    """What can be read without a complaint; recovery's own steps have the words for the rest."""
    try:
        return reader.read(root)
    except FencepostError:
        return None


def _lives(pid: int) -> bool:
    return exists(pid) and pid != os.getpid()
