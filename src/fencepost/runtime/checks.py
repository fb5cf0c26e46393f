"""What must be true before a job runs: one list of named checks over one `Launch`.

    start             BEFORE ─► recovery ─► AFTER      the first refusal ends it
    fencepost check   all of them, to the end          nothing is taken over, created or changed

To add a check, add an entry to `CHECKS`. A check only looks and refuses; it never changes anything.
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from fencepost import connectors, guarantee
from fencepost.config import RocksDBState, RunConfig, Setting
from fencepost.contract import (
    OutputMode,
    Sink,
    Territory,
    check_apart,
    check_can_write,
    is_comparable,
    mode_does_not_fit,
)
from fencepost.errors import BadConfig, CheckpointRefused, FencepostError, Tolerance, Where
from fencepost.guarantee import Guarantee, Link, Report, sink_link, source_link
from fencepost.observe.heartbeat import exists
from fencepost.observe.journal import Observer
from fencepost.protocol.append import check_readable, read_ledger
from fencepost.protocol.format import Damaged
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch, Lineage, SinkRecord, decode
from fencepost.protocol.recovery import recover
from fencepost.runtime import arrangement, pace
from fencepost.runtime.driver import Plan, start_of
from fencepost.runtime.performer import Known, Performer
from fencepost.runtime.sieve import DeadLetters
from fencepost.spark import (
    backend,
    bad_records,
    branches,
    fingerprint,
    fork,
    keyed_state,
    keys,
    package,
    plan,
    replay,
    scan,
    spark_session,
    watermark,
)
from fencepost.spark.bridge import Bridge, ForeachBatchBridge, JvmBridge
from fencepost.spark.diagnosis import at_the_start
from fencepost.spark.hadoop import LOUD
from fencepost.spark.jvm import release
from fencepost.store import Store, parts, place, read_only, store_at
from fencepost.store.base import record_name
from fencepost.store.notes import BranchNote, newest_plan, read_plan, write_plan
from fencepost.store.path import is_remote, scheme_of
from fencepost.store.probe import check_store
from fencepost.store.spark_log import SparkLog

Until = Literal["stopped", "available"]


@dataclass
class Launch:
    """One start of a job, or one `fencepost check` of it: its settings, and everything read about it, each once."""

    config: RunConfig
    spark: Any
    branches: Mapping[str, tuple[Any, Sink]]
    """DataFrames and their sinks, by sink name, as the user wrote them."""
    observer: Observer
    tolerance: Tolerance = field(default_factory=Tolerance)
    until: Until = "stopped"
    dead: frozenset[str] = frozenset()
    """The branches that carry dead letters."""
    aside: Mapping[str, DeadLetters] = field(default_factory=dict)
    """By sink: where the rows go that it refuses."""
    vouched: tuple[plan.PlanSource, ...] = ()
    """The sources that are replayable by the user's own word."""
    given: Any = None
    """A `DataStreamWriter` that the user brought; None: we build one from the branches."""
    looks: bool = False
    """True for `fencepost check`: nothing is started, and nothing may be changed."""
    made: bool = False
    """Is it a session that we made for this job? Nobody else minds what is set in it."""
    recovered: State | None = None
    """The ledger, once recovery is over."""
    targets: dict[str, str] = field(default_factory=dict)
    """Target identities, as far as `fencepost check` found them."""
    territories: dict[str, Territory | None] = field(default_factory=dict)
    """What each sink writes to, as far as `fencepost check` found it."""
    identities: connectors.Identities = field(default_factory=dict)
    """Source identities, as far as the sources were asked."""

    # --- the plan

    @cached_property
    def frames(self) -> dict[str, Any]:
        """In the order that state and positions need: Spark numbers them by their place in the plan."""
        return {name: self.branches[name][0] for name in self.order}

    @cached_property
    def sinks(self) -> dict[str, Sink]:
        """In the same order."""
        return {name: self.branches[name][1] for name in self.order}

    @cached_property
    def order(self) -> list[str]:
        """The noted order of the branches; sorted by the names of their sinks as long as nothing has run.

        If there is none, because a branch cannot be found again, the check of the plan says so.
        """
        try:
            return self.arranged(self.noted)
        except (FencepostError, OSError):
            return sorted(self.branches)

    def arranged(self, noted: list[BranchNote] | None) -> list[str]:
        """The order of the branches that continues this one."""
        if noted is None:
            return sorted(self.branches)
        return arrangement.arrange(noted, self.fingerprints, self.config.job)

    @cached_property
    def fingerprints(self) -> dict[str, BranchNote]:
        """What each branch is known by."""
        return fingerprint.of({name: frame for name, (frame, _) in self.branches.items()})

    @cached_property
    def numbered(self) -> list[BranchNote]:
        """The same, in the order of the plan, as Spark will count its sources."""
        return fingerprint.numbered([self.fingerprints[name] for name in self.order], self.whole)

    @cached_property
    def mode(self) -> str:
        """The output mode of all branches."""
        aggregates = any(map(plan.needs_update, self.frames.values()))
        return self.config.output_mode or ("update" if aggregates else "append")

    @cached_property
    def modes(self) -> dict[str, OutputMode]:
        """The output mode of each branch."""
        return {name: plan.branch_mode(frame, self.mode) for name, frame in self.frames.items()}

    @cached_property
    def sources(self) -> list[plan.PlanSource]:
        """The sources of all branches."""
        return [source for frame in self.frames.values() for source in plan.sources_of(frame)]

    @cached_property
    def watermarks(self) -> list[watermark.Watermark]:
        """Of all branches."""
        return watermark.of({name: frame for name, (frame, _) in self.branches.items()})

    @property
    def awaited(self) -> list[str]:
        """The sources that a watermark waits for, by their names in Spark's `offsets`."""
        found: list[str] = []
        before = 0
        for name in self.order:
            sources = self.fingerprints[name].sources
            places = {n for one in self.watermarks if one.branch == name for n in one.sources}
            found += [sources[n].name or str(before + n) for n in sorted(places)]
            before += len(sources)
        return found

    @cached_property
    def schemas(self) -> dict[str, Any]:
        """The columns of every branch, as its sink will get them."""
        return {name: self.schema(name) for name in self.frames}

    def schema(self, name: str) -> Any:
        """The columns of one branch."""
        try:
            return branches.arrow_schema(self.frames[name])
        except FencepostError as error:
            raise error.at(job=self.config.job, sink=name) from None

    @cached_property
    def whole(self) -> Any:
        """One DataFrame of all branches; sinks that write in tasks are the last step of theirs."""
        return self.given._df if self.given is not None else branches.union(self.ends, self.scans)

    @cached_property
    def ends(self) -> dict[str, Any]:
        """The DataFrames, those of sinks that write in tasks with that step."""
        frames = self.frames
        if not self.config.deterministic_udfs:
            frames = {name: fork.called_once(frame, self.config.job) for name, frame in frames.items()}
        if self.config.guarantee is not Guarantee.EXACTLY_ONCE:  # the weaker guarantees write from the driver
            return frames
        writes = {name: self.sinks[name].in_tasks(self.config.job) for name in self.frames}
        return {
            name: frame if (write := writes[name]) is None else branches.written_in_tasks(frame, write)
            for name, frame in frames.items()
        }

    @cached_property
    def scans(self) -> list[scan.Scan]:
        """The branches that are read at once."""
        return scan.scans(self.ends) if self.config.one_scan else []

    @property
    def reads_once(self) -> bool:
        """Is each source read by one scan?"""
        others = {name for one in self.scans for name in one.names[1:]}
        read = [frame for name, frame in self.frames.items() if name not in others]
        sources = [source for frame in read for source in plan.sources_of(frame)]
        return len(sources) == len({(one.kind, str(one.options)) for one in sources})

    @cached_property
    def writer(self) -> Any:
        """The prepared `DataStreamWriter`."""
        if self.given is not None:
            return self.given
        writer = self.whole.writeStream.outputMode(self.mode).queryName(self.config.job)
        if self.until == "available":
            return writer.trigger(availableNow=True)
        interval = self.config.checkpoint.interval_ms
        if not interval and any(map(plan.never_pauses, self.frames.values())):
            return writer.trigger(processingTime=keyed_state.PAUSE)
        return writer.trigger(processingTime=f"{interval} milliseconds")

    @cached_property
    def rests(self) -> bool:
        """Do we choose the time between two epochs? Not if the user does, nor for a run until everything is done."""
        chosen = self.config.checkpoint
        return chosen.interval is None and chosen.min_pause is None and plan.pause_ms(self.writer) == 0

    @cached_property
    def paces(self) -> Mapping[str, str]:
        """Settings that the pace of the epochs needs."""
        rests = self.rests and self.spark.conf.get(pace.LOOK, None) is None
        return {**(pace.SETTINGS if rests else {}), **keyed_state.paces(self.frames, self.writer, self.config.job)}

    @property
    def lasting(self) -> Mapping[str, str]:
        """Settings that a start leaves in the session."""
        return spark_session.lasting(self.config.place, jar=self.jar)

    @cached_property
    def proof(self) -> fork.Proof | None:
        """The check on what branches share that must pass before each decision."""
        return bad_records.proof(self.spark, self.frames, self.config.job)

    @cached_property
    def jar(self) -> bool:
        """Are our Java classes in this session?"""
        return self.config.bridge != "foreach_batch" and spark_session.bring_jar(self.spark)

    @cached_property
    def bridge(self) -> Bridge:
        """The bridge the user asked for, or the better one that this session allows."""
        asked = self.config.bridge
        if asked not in (None, "jvm", "foreach_batch"):
            raise BadConfig(
                "unknown_bridge",
                f"Unknown bridge {asked!r}.",
                where=Where(job=self.config.job),
                next="Use 'jvm' or 'foreach_batch'.",
            )
        if asked == "jvm" and not self.jar:
            raise spark_session.no_jar("bridge='jvm'", ", or use bridge='foreach_batch'").at(job=self.config.job)
        return JvmBridge(self.spark) if self.jar else ForeachBatchBridge(self.spark)

    @cached_property
    def report(self) -> Report:
        """Which guarantee holds end to end, and why."""
        check_writes(self)
        notes = [] if self.jar else [spark_session.WITHOUT_JAR]
        said = {name: sink.capabilities.note for name, (_, sink) in self.branches.items()}
        notes += [f"sink {name}: {note}" for name, note in said.items() if note]
        notes += connectors.notes(self.sources)
        notes += keyed_state.notes(self.frames)
        if self.config.deterministic_udfs:
            notes.append("your Python functions are taken to be deterministic (deterministic_udfs=True)")
        return Report(self.config.job, self.config.guarantee, tuple(self.links), tuple(notes))

    @property
    def links(self) -> list[Link]:
        """Every link from source to sink, with the best guarantee it allows."""
        frames = [frame for frame, _ in self.branches.values()]
        sources = [source for frame in frames for source in plan.sources_of(frame)]
        has = self._backend if self.begun is None else self.begun.settings
        return [
            *dict.fromkeys(link for source in sources for link in self._source_links(source)),
            *backend.links(self.spark, frames, self.config.state, has, self.config.job),
            *plan.links(self.spark),
            *watermark.links(self.watermarks, self.spark, self._newest_offsets),  # read only if it matters
            *(sink_link(name, sink.capabilities) for name, (_, sink) in self.branches.items()),
        ]

    def _source_links(self, source: plan.PlanSource) -> list[Link]:
        """The best guarantee that a source allows with its options; if it is not the best one, each reason."""
        weak = [
            Link(f"source {source.kind}", Guarantee.AT_MOST_ONCE, weakness.reason, weakness.cure)
            for weakness in connectors.weaknesses(self.spark, source)
        ]
        replayable, vouched = source.replayable(self.vouched), source in self.vouched
        return weak or [source_link(source.kind, replayable=replayable, vouched=vouched)]

    # --- the checkpoint

    def _newest_offsets(self) -> str | None:
        with suppress(OSError):  # the next read reports it
            for epoch in self.log.names("offsets")[-1:]:
                return self.log.read("offsets", Epoch(epoch))
        return None

    @cached_property
    def store(self) -> Store:
        """The checkpoint's store; read-only for `fencepost check`."""
        store = store_at(self.config.place)
        return read_only(store) if self.looks else store

    @cached_property
    def log(self) -> SparkLog:
        """Spark's own offset and commit log."""
        return SparkLog(self.store)

    @cached_property
    def known(self) -> Known:
        """The checkpoint's identity and the first record of its ledger: read here, and nowhere else."""
        identity = self.log.identity()
        lineage = identity.metadata if identity.metadata in identity.ledgers else "".join(identity.ledgers[:1])
        return Known(identity, lineage or "", self.store.read(record_name(lineage, 0)) if lineage else None)

    @cached_property
    def noted(self) -> list[BranchNote] | None:
        """The branches as the last driver noted them; None as long as nothing was made that they could be about."""
        if not self.known.identity.epochs or not self.known.lineage or self._is_in_first_epoch:
            return None
        return read_plan(self.store, (self.known.lineage, *reversed(self.begun.ancestors if self.begun else ())))

    @property
    def _is_in_first_epoch(self) -> bool:
        """Did every driver so far fail in epoch 0? Then there is no state, and whoever fixes the plan is welcome."""
        if tuple(self.known.identity.epochs) != (0,) or self.log.names("commits"):
            return False
        return self.ledger is not None and self.ledger.newest is None

    def note_plan(self, writer: int) -> None:
        """After recovery, when nobody else can decide, and before the query: from now on this is the order."""
        assert self.recovered is not None, "recover first"
        lineage = self.recovered.lineage_id
        if self.log.names("offsets"):
            noted = read_plan(self.store, (lineage, *reversed(self.recovered.lineage.ancestors)))
            if noted is not None and noted != self.noted:
                self.check_noted(noted)
        write_plan(self.store, lineage, writer, self.numbered)

    def check_noted(self, noted: list[BranchNote]) -> None:
        """Refuse a plan that does not continue this one."""
        if self.arranged(noted) != self.order:  # the order is from an older note
            raise arrangement.changed_meanwhile(self.config.job)
        arrangement.check(noted, self.numbered, self.config.job, accepts=self.config.allow_plan_changes)

    @property
    def begun(self) -> Lineage | None:
        """What the checkpoint was created with; None before its first start.

        A ledger that cannot be read counts as None here: recovery refuses it with a proper error. Not cached: a
        temporary failure of the store must not stick.
        """
        try:
            body = decode(self.known.first or b"").body
        except (OSError, Damaged, CheckpointRefused):
            return None
        return body if isinstance(body, Lineage) else None

    def check_readable(self) -> None:
        """Refuse a checkpoint that a newer fencepost wrote to; before anything is written, even to the journal."""
        with suppress(OSError):  # the next read reports it
            if self.known.lineage:
                self.performer.look(check_readable(self.known.lineage))

    @cached_property
    def ledger(self) -> State | None:
        """The ledger before anybody takes over, if it can be read; if not, recovery raises the error."""
        with suppress(FencepostError, OSError):
            found = self.known.identity
            named = [lineage for lineage in found.ledgers if not found.metadata or lineage == found.metadata]
            if named == [self.known.lineage]:
                return self.performer.look(read_ledger(self.known.lineage, self.config.job))
        return None

    @property
    def performer(self) -> Performer:
        """Only for reading: it has no sinks."""
        return Performer(self.config.job, self.store, self.log, {}, known=self.known)

    @cached_property
    def formats(self) -> Mapping[str, str]:
        """State formats: chosen at the first start; later starts, and an adopted checkpoint, keep theirs."""
        config, has_ran = self.config, self.known.identity
        if self.begun is not None:
            plan.check_begun_alike(self.begun.settings, self.sources, config.job)
            backend.check_same(config.state, self.begun.settings, job=config.job, path=config.place)
            return self.begun.settings
        if not (config.adopt and has_ran.epochs and not has_ran.ledgers):
            states = set().union(*map(plan.states_of, self.frames.values()))
            keyed = spark_session.KEYED_STATE if states == {plan.KEYED_STATE} else {}
            return {**self._backend, **keyed, **plan.formats(self.sources, config.job)}
        backend.check_same(config.state, {}, job=config.job, path=config.place)
        plan.check_begun_alike({}, self.sources, config.job)
        return {}

    @property
    def _backend(self) -> Mapping[str, str]:
        """How a new checkpoint keeps its state."""
        picked = backend.formats(self.config.state or RocksDBState())
        owned = backend.on_heap(picked) and is_remote(self.config.place) and self.owns_files
        return {**picked, spark_session.OWNED: "true"} if owned else picked

    @property
    def owns_files(self) -> bool:
        """Can our file class name the files of state on the heap? Spark 4.0 has its parent elsewhere."""
        return self.jar and release(self.spark.version) >= (4, 1)

    @cached_property
    def has_state_of_format_1(self) -> bool:
        """Are there state files from plain Spark that any task attempt may overwrite?"""
        return not self.formats and self.log.has_state_of_format_1()

    @property
    def keep(self) -> int:
        """How many epochs are retained."""
        return self.config.checkpoint.keep_epochs or max(100, spark_session.epochs_retained(self.spark))

    @property
    def placed(self) -> dict[str, plan.PlanSource]:
        """The sources of all branches, by name or by place."""
        return {source.name or str(place): source for place, source in enumerate(self.sources)}

    def identify(self, places: Iterable[str]) -> None:
        """Ask the sources in these places for their identities."""
        placed = self.placed
        for thing, ids in connectors.find(self.spark, {one: placed[one] for one in places}, self.config.job).items():
            self.identities.setdefault(thing, {}).update(ids)

    @property
    def _watch(self) -> fork.Proof | None:
        """The check that no source was replaced, which must pass before each decision."""
        return connectors.watch(self.spark, self.placed, self.store, self.identities, self.config.job)

    @property
    def plan(self) -> Plan:
        """What the driver needs."""
        return Plan(
            config=self.config,
            store=self.store,
            sinks=self.sinks,
            schemas=self.schemas,
            modes=self.modes,
            formats=self.formats,
            keep=self.keep,
            observer=self.observer,
            tolerance=self.tolerance,
            proofs=tuple(proof for proof in (self.proof, self._watch) if proof is not None),
            unchanged=connectors.file_check(self.spark, self.sources, self.config.job),
            uses=[source.folder for branch in self.numbered for source in branch.sources if not source.name],
            known=self.known,
            aside=self.aside,
            rests=self.rests,
        )


class When(enum.Enum):
    """When a start runs a check. `fencepost check` runs them all."""

    BEFORE = "before recovery: a refused job has changed nothing"
    AFTER = "after recovery: decided epochs are finished first, and recovery may repair what the check looks at"
    LOOK = "never: a start finds out by doing it, in its recovery"


Found = Iterator[FencepostError | str]
"""Problems that would each stop a start, and notes for `fencepost check`."""


class Check(NamedTuple):
    """One thing that must be true. `find` either raises a single problem or yields several."""

    name: str
    says: str
    find: Callable[[Launch], object]
    when: When = When.BEFORE

    def findings(self, launch: Launch) -> Found:
        """Problems and notes; an OSError from the store becomes one of our errors."""
        config = launch.config
        try:
            for found in _all_of(self.find, launch):
                yield found.at(job=config.job) if isinstance(found, FencepostError) else found
        except OSError as error:
            problem = at_the_start(error, config.job, config.place)
            problem.__cause__ = error
            yield problem


def refuse(launch: Launch, when: When) -> None:
    """Raise the first problem."""
    for check in CHECKS:
        if check.when is when:
            for found in check.findings(launch):
                if isinstance(found, FencepostError):
                    raise found


@dataclass(slots=True)
class Findings:
    """What `fencepost check` found for one job."""

    job: str
    report: Report | None = None
    """The guarantee; None if it could not be determined."""
    problems: list[FencepostError] = field(default_factory=list)
    """Each would stop a start, or was found by a probe."""
    notes: list[str] = field(default_factory=list)
    """Worth knowing, but not a reason to refuse."""
    settings: tuple[Setting, ...] = ()
    """What the environment and the file say."""

    @property
    def starts(self) -> bool:
        """Would it start? A start does not probe its sources."""
        return all(error.code == "not_replayable" for error in self.problems)

    def add(self, found: FencepostError | str) -> None:
        """Add each problem once: several checks may hit the same one."""
        if isinstance(found, str):
            self.notes.append(found)
        elif str(found) not in map(str, self.problems):
            self.problems.append(found)


def look(launch: Launch, *, probes: bool = False) -> Findings:
    """Everything that a start would refuse, all at once and without changing anything: `fencepost check`.

    With `probes`, one micro-batch of every source is read twice.
    """
    found = Findings(launch.config.job, settings=launch.config.outside)
    with suppress(FencepostError):
        found.report = launch.report
        found.notes += launch.report.notes
    for check in CHECKS:
        for one in check.findings(launch):
            found.add(one)
        if check.find is check_writes and found.problems:
            return found
    found.notes += [*_living_driver(launch), *_times(launch), *_overlap(launch), *plan_notes(launch)]
    if found.starts:
        found.settings += (*_own_settings(launch),)
    if probes:
        for one in _probed(launch, found.problems):
            found.add(one)
    return found


def _own_settings(launch: Launch) -> Iterator[Setting]:
    """What we set besides what the user said: the pace, and what a start leaves in a session that is not ours."""
    for name, value in connectors.settings(launch.sources):
        yield Setting(name, value, "the source's options")
    if launch.rests:
        yield Setting("pace", pace.WORDS, "fencepost (set interval= to change it)")
    for name, value in scan.settings(launch.scans).items():
        yield Setting(name, value, "fencepost (for this query, whose branches share a scan; not with one_scan=False)")
    for name, value in () if launch.made else _left(launch):
        yield Setting(name, value, "fencepost (stays in your session)")


def _left(launch: Launch) -> Iterator[tuple[str, str]]:
    """What is in a session, or in its JVM, after a start and was not before."""
    yield from launch.lasting.items()
    if launch.jar or is_remote(launch.config.place):
        yield "jar", spark_session.JAR.name
    if package.ARCHIVE in launch.spark.sparkContext._python_includes:  # where our Python runs in remote tasks
        yield "Python files", package.ARCHIVE
    keeps = any(plan.KEYED_STATE in plan.states_of(frame) for frame in launch.frames.values())
    for logger in (*([keyed_state.STATE_SERVER] if keeps else []), *(LOUD if is_remote(launch.config.place) else ())):
        yield f"log level of {logger}", "ERROR"


def _probed(launch: Launch, problems: Sequence[FencepostError]) -> Found:
    if any(error.code != "guarantee_too_high" for error in problems):  # the missing word may be what is probed for
        yield "the sources were not probed: fix the problems below first"
        return
    for one in replay.probe_all(launch.frames.values(), launch.config.job):
        yield one.says if isinstance(one, replay.Probe) else one


def check_writes(launch: Launch) -> None:
    """Refuse a job without branches, or with only dead letters."""
    if not launch.branches.keys() - launch.dead:
        raise BadConfig(
            "nothing_to_write",
            "The job writes nothing.",
            where=Where(job=launch.config.job),
            next="Add a sink: job.write(dataframe, sink).",
        )


def _all_of(check: Callable[[Any], object], thing: Any) -> Found:
    """What a check raises or yields."""
    try:
        found = check(thing)
        if isinstance(found, Iterator):
            yield from found
    except FencepostError as error:
        yield error


def _for_each(things: Iterable[Any], check: Callable[[Any], object]) -> Found:
    """Check each thing, even after another one was refused."""
    for thing in things:
        yield from _all_of(check, thing)


def _check_guarantee(launch: Launch) -> Found:
    asked, job = launch.config.guarantee, launch.config.job
    return _for_each(launch.report.links, lambda link: guarantee.check(asked, [link], job=job))


def _check_plan(launch: Launch) -> None:
    for sink, frame in launch.frames.items():  # of the whole plan Spark looks at its first aggregate only
        if frame.isStreaming:
            plan.check_plan(frame, launch.mode, launch.config.job, sink)
    plan.check_plan(launch.whole, launch.mode, launch.config.job)


def _check_not_running(launch: Launch) -> None:
    if launch.config.job in spark_session.running(launch.spark):
        # Recovery would take the checkpoint from the running query, and Spark would then refuse the new one.
        raise BadConfig(
            "already_running",
            "A query with this name is already running in this session.",
            where=Where(job=launch.config.job),
            next="Stop it first: job.stop() or query.stop().",
        )


def _takes(sink: Sink, mode: OutputMode) -> bool:
    return mode in sink.capabilities.modes


def _check_modes(launch: Launch) -> Found:
    for name, sink in launch.sinks.items():
        mode = launch.modes[name]
        if not _takes(sink, mode):
            remedy = sink.capabilities.remedy if mode == "update" else ""
            yield mode_does_not_fit(mode, remedy).at(job=launch.config.job, sink=name)


def _check_order(launch: Launch) -> Found:
    """With a key, one row of an epoch has to be the last, whatever the order in which Spark runs its tasks."""
    for name, sink in launch.sinks.items():
        if sink.keyed is not None and _takes(sink, launch.modes[name]):
            yield from _for_each([name], lambda name: _check_last_row(launch, name))


def _check_last_row(launch: Launch, name: str) -> None:
    keyed, frame = launch.sinks[name].keyed, launch.frames[name]
    assert keyed is not None, "only called for these"
    schema = launch.schema(name)
    where = Where(job=launch.config.job, sink=name)
    simple = [field.name for field in schema if is_comparable(field.type)]
    if wrong := [column for column in keyed.order_by if column not in simple]:
        why = "whose values have no order" if wrong[0] in schema.names else "which the DataFrame does not have"
        raise BadConfig(
            "bad_order_by",
            f"order_by= names {wrong[0]!r}, {why}.",
            where=where,
            next=f"Choose from the DataFrame's columns: {', '.join(simple)}.",
        )
    if keyed.deletes is not None:
        _check_deletes(schema, keyed.deletes, where)
    if launch.config.guarantee is not Guarantee.EXACTLY_ONCE or keyed.order_by or keyed.unique:
        return
    if not set(keyed.key) <= set(schema.names):
        return  # the sink says so
    if (keyed.keeps_all and keyed.deletes is None) or (keyed.key and keys.has_last_rows(frame, keyed.key)):
        return
    key = f"the key ({', '.join(keyed.key)})" if keyed.key else "its key, which key= does not name"
    keeps = "With deletes= the last message decides" if keyed.keeps_all else "The sink keeps one row"
    stays = "comes last" if keyed.keeps_all else "stays"
    raise BadConfig(
        "last_row_undefined",
        f"{keeps} for each value of {key}. An epoch may have several, and nothing says which of them is the last: it "
        "would depend on how Spark splits the epoch.",
        where=where,
        next=f'Set order_by="<column>" on the sink: the row with the greatest value {stays} (a time, a version, an '
        "offset). Or group by the key, or set unique_key=True if no key ever occurs twice.",
    )


def _check_deletes(schema: pa.Schema, deletes: str, where: Where) -> None:
    found = schema.field(deletes).type if deletes in schema.names else None
    if found is None or not pa.types.is_boolean(found):
        why = "which the DataFrame does not have" if found is None else f"which has type {found} and is not a boolean"
        raise BadConfig(
            "bad_deletes",
            f"deletes= names {deletes!r}, {why}.",
            where=where,
            next=f'Add a column that is true in rows to remove: .withColumn("{deletes}", <condition>).',
        )


def _check_aside(launch: Launch) -> Found:
    """Refused rows are moved in what is staged, and the epoch is written again: what tasks wrote cannot be."""
    for name in launch.aside:
        where = Where(job=launch.config.job, sink=name)
        why = cure = ""
        tasks = [sink.name for sink in launch.sinks.values() if sink.in_tasks(launch.config.job) is not None]
        if launch.config.guarantee is not Guarantee.EXACTLY_ONCE:
            why, cure = f"under {launch.config.guarantee.word} nothing is voted on", "Set guarantee='exactly_once'"
        elif launch.mode == "complete":
            why, cure = "in output mode complete every epoch has all rows again", "Use output mode update, and a key"
        elif tasks:
            why = f"the tasks write to {tasks[0]!r} directly"
            cure = "Let the driver write to all sinks: no parallel=True, staging='checkpoint'"
        elif not launch.sinks[name].capabilities.names_rows:
            why, cure = "this sink cannot tell which rows it refuses", "Write to a table in a database, or to Kafka"
        if why:
            yield BadConfig(
                "rows_not_named",
                f"This write does not support on_bad_record='dead_letter': {why}.",
                where=where,
                next=f"{cure}; or check the rows beforehand, with job.map(…, on_bad_record='dead_letter').",
            )


def _check_columns(launch: Launch) -> Found:
    return _for_each(launch.frames, launch.schema)


def _rehearse_targets(launch: Launch) -> Found:
    """Ask each sink what a start would do to its target; skip a sink that refuses the output mode anyway."""
    fit = [sink for name, sink in launch.sinks.items() if _takes(sink, launch.modes[name])]
    yield from _for_each(fit, lambda sink: _rehearse(launch, sink))
    check_apart(launch.territories)


def _rehearse(launch: Launch, sink: Sink) -> Iterator[str]:
    schema = launch.schema(sink.name)
    opened = sink.session(launch.config.job)
    try:
        rehearsal = opened.rehearse(schema, launch.modes[sink.name])
        launch.territories[sink.name] = opened.territory()
    except FencepostError as error:
        raise error.at(sink=sink.name) from error.__cause__
    finally:
        opened.close()
    if rehearsal is None:
        yield f"sink {sink.name}: its target was not checked, because checking could change it"
        return
    launch.targets[sink.name] = rehearsal.identity
    if rehearsal.makes:
        yield f"sink {sink.name}: the first start creates {', '.join(rehearsal.makes)}"


def _check_forks(launch: Launch) -> None:
    fork.check(launch.frames, launch.config.job, trusts_udfs=launch.config.deterministic_udfs)
    if launch.config.guarantee is Guarantee.EXACTLY_ONCE:
        fork.check_moves(launch.frames, launch.config.job, trusts_udfs=launch.config.deterministic_udfs)


def _check_place(launch: Launch) -> None:
    """A start tries to write there, from the driver and from every executor; `fencepost check` may not."""
    root = place(launch.config.place)
    if is_remote(launch.config.place) and scheme_of(launch.config.place) == "s3a":
        # Spark 4.0's Hadoop (3.4.1) has no conditional create
        where = Where(job=launch.config.job, path=launch.config.place)
        instead = "Put the checkpoint on hdfs:// or a shared folder, or use"
        spark_session.need(launch.spark.version, (4, 1), "a checkpoint on s3a needs", where=where, instead=instead)
    if launch.looks:
        if isinstance(root, Path):
            check_can_write(root)
    elif isinstance(root, Path):
        spark_session.check(launch.spark, launch.store.root, launch.config.job)
    else:
        check_store(launch.store, launch.config.job)


def _check_formats(launch: Launch) -> None:
    where = Where(job=launch.config.job, path=launch.config.place)
    owned = backend.is_owned(launch.formats)
    unowned = not owned and backend.on_heap(launch.formats) and is_remote(launch.config.place)
    if unowned or (owned and not launch.owns_files):
        old = unowned and launch.owns_files
        raise BadConfig(
            "heap_needs_jar",
            "The files of this state on the heap do not say who wrote them, because the checkpoint was created in a "
            "folder; now it is remote."
            if old
            else "Spark's files of state on the heap do not say who wrote them. In a remote checkpoint fencepost.jar "
            "names them, which needs Spark 4.1 or newer and a session that has the jar.",
            where=where,
            next="Restore it into a folder."
            if old
            else "Use such a session without bridge='foreach_batch', or a new checkpoint with state=fp.RocksDBState() "
            "or in a folder.",
        )
    alone = launch.spark.sparkContext.master.startswith("local[") and not is_remote(launch.config.place)
    if launch.begun is None and launch.has_state_of_format_1 and not alone:
        raise BadConfig(
            "state_format_1",
            "This checkpoint has state in format 1, where one task attempt can overwrite the state of another.",
            where=where,
            next="Adopt it with a local master (one executor) and in a local folder, or start with a new checkpoint.",
        )


def _check_fate(launch: Launch) -> Found:
    """Before recovery, because recovery removes what a rewind with another fate would still need."""
    if launch.begun is None or launch.begun.fate != "overwrite" or launch.ledger is None:
        return
    newest = launch.ledger.newest
    for name, sink in launch.sinks.items():
        if newest is not None and newest.cause == "restore" and not sink.capabilities.replaces:
            yield BadConfig(
                "overwrite_needs_key",
                "This checkpoint was rewound or restored with 'overwrite', which replaces rows by key, and this sink "
                "has no key.",
                where=Where(job=launch.config.job, sink=name),
                next="Give the sink a key=…, or rewind to the same epoch with 'quiet' (nothing is written twice) or "
                "'again' (into an emptied target).",
            )
        elif newest is not None and newest.cause == "restore" and sink.keyed is not None:
            key = sink.keyed.key or launch.frames[name].columns  # only the target knows
            if drawn := keys.varying(launch.frames[name], key):
                yield _other_keys(drawn).at(job=launch.config.job, sink=name)


def _other_keys(drawn: str) -> BadConfig:
    return BadConfig(
        "overwrite_other_keys",
        "This checkpoint was rewound or restored with 'overwrite', which replaces rows by key. The plan draws keys, or "
        f"chooses rows, by {drawn}, which is different in every run: rows of the first run would stay beside the new "
        "ones.",
        next="Rewind to the same epoch with 'again' into a target from which you removed the rows of later epochs; or "
        "make the keys from the records (sha2, xxhash64).",
    )


def _check_sources_answer(launch: Launch) -> Found:
    """A new job that cannot read changes nothing; an old one finishes decided epochs before it asks its sources."""
    if launch.looks:
        yield from _for_each(launch.placed, lambda place: launch.identify([place]))
    elif not launch.known.identity.ledgers:
        launch.identify(launch.placed)


def _rehearse_recovery(launch: Launch) -> None:
    """Run recovery up to its first change: whatever it would refuse before taking over, it refuses here."""
    known = launch.ledger.sinks if launch.ledger else {}
    targets = {
        name: known[name]
        if name not in launch.targets and name in known
        else SinkRecord(sink.capabilities.shape, launch.targets.get(name, ""))
        for name, sink in launch.sinks.items()
    }
    launch.performer.look(recover(start_of(launch.config, launch.sinks, targets)))


def _check_noted(launch: Launch) -> None:
    """Before recovery: it needs only what a driver noted, and a refused job has changed nothing."""
    job, noted = launch.config.job, launch.noted
    if noted is not None:
        try:
            launch.check_noted(noted)
        except CheckpointRefused as error:
            error.next += _after_upgrade(launch, noted)
            raise
    elif launch.known.identity.epochs and launch.ledger is not None:
        before = launch.ledger.sinks
        if before and before.keys() != launch.branches.keys() and max(len(before), len(launch.branches)) > 1:
            raise arrangement.not_noted(list(before), list(launch.branches), job)


def _after_upgrade(launch: Launch, noted: Sequence[BranchNote]) -> str:
    """The texts of a plan are those of Spark, and another release may write one differently: a person has to say so."""
    driver = launch.ledger.driver if launch.ledger else None
    before, now = (driver.versions.get("pyspark", "") if driver else ""), str(launch.spark.version)
    if not before or release(before) == release(now):
        return ""
    advice = f" The job last ran on Spark {before}, and this is {now}: upgrade without any other change"
    if [branch.sink for branch in noted] != sorted(launch.branches):
        return f"{advice}, or go back to that release."  # without the note, the order of the branches would be lost
    note = newest_plan(launch.store, (launch.known.lineage, *reversed(launch.begun.ancestors if launch.begun else ())))
    return f"{advice}. If there is none, Spark only writes it differently: delete {launch.store.root}/{note}."


def _check_snapshot(launch: Launch) -> None:
    if (ledger := launch.recovered or launch.ledger) is not None:
        parts.check_newest(place(launch.config.place), ledger)


def _check_sources_are_the_same(launch: Launch) -> Found:
    if (ledger := launch.recovered or launch.ledger) is None:
        return
    if not launch.looks and launch.known.identity.ledgers:
        launch.identify(launch.placed)
    lineages = (ledger.lineage_id, *reversed(ledger.lineage.ancestors))
    try:
        connectors.check_same(launch.store, lineages, launch.identities, launch.config.job)
    except FencepostError as error:
        yield error
    plan.check_none_returns(launch.store, launch.sources, launch.config.job)


def _check_read_files(launch: Launch) -> None:
    """After recovery, which says what is decided. Not between quiet epochs: they read what the command compared."""
    ledger = launch.recovered or launch.ledger
    if launch.config.guarantee is not Guarantee.EXACTLY_ONCE or ledger is None or ledger.newest is None:
        return
    if ledger.quiet_offsets(ledger.next_epoch) is None:
        lineages = (ledger.lineage_id, *reversed(ledger.lineage.ancestors))
        job, offsets = launch.config.job, ledger.newest.offsets
        connectors.check_read(launch.spark, launch.sources, launch.store, lineages=lineages, offsets=offsets, job=job)


def _check_keyed_state(launch: Launch) -> None:
    fixed = launch.formats if launch.recovered is None else launch.recovered.lineage.settings
    keyed_state.check_beside(fixed, launch.frames, launch.config.job)


CHECKS: tuple[Check, ...] = (
    Check("branches", "The job writes something.", check_writes),
    Check("guarantee", "Source, state and sinks together give the requested guarantee.", _check_guarantee),
    Check("modes", "Every sink accepts the output mode of its branch.", _check_modes),
    Check("plan", "Spark accepts the plan in its output mode.", _check_plan),
    Check("order", "With a key, an epoch has one last row for each.", _check_order),
    Check("running", "No query with this name is running in this session.", _check_not_running),
    Check("forks", "A record has one result: in all branches, and when a task runs again.", _check_forks),
    Check("dead letters", "No bad record would be lost.", attrgetter("proof")),
    Check("refused rows", "A sink whose refused rows become dead letters can name them.", _check_aside),
    Check(
        "pauses",
        "Keyed state on processing time has a pause between epochs.",
        attrgetter("paces"),
    ),
    Check("bridge", "The requested bridge works in this session.", attrgetter("bridge")),
    Check("columns", "Every column has a type that sinks support.", _check_columns),
    Check("targets", "Every target answers, and its columns fit.", _rehearse_targets, When.LOOK),
    Check("place", "The driver and every executor can use the checkpoint's location.", _check_place),
    Check("formats", "The state has the formats that the checkpoint was created with.", _check_formats),
    Check("state", "Every operator with state, and every source, is where it was.", _check_noted),
    Check("fate", "Rows to be overwritten can be found by a key.", _check_fate),
    Check(
        "sources",
        "Every source answers.",
        _check_sources_answer,
    ),
    Check("ledger", "It belongs to this job, with the same guarantee and targets.", _rehearse_recovery, When.LOOK),
    Check("snapshot", "All files that the newest epoch needs are intact.", _check_snapshot, When.AFTER),
    Check("positions", "The recorded offsets belong to these sources.", _check_sources_are_the_same, When.AFTER),
    Check("files", "No file was changed after it was read.", _check_read_files, When.AFTER),
    Check("keyed state", "No other state was added to a checkpoint of keyed state.", _check_keyed_state, When.AFTER),
)


# --- worth knowing, but not a reason to refuse


def _living_driver(launch: Launch) -> Iterator[str]:
    driver = launch.ledger.driver if launch.ledger else None
    if driver and driver.host == socket.gethostname() and _lives(driver.pid):
        yield f"this job may already be running (process {driver.pid}): a start takes over from it"


def _lives(pid: int) -> bool:
    return exists(pid) and pid != os.getpid()


def _times(launch: Launch) -> Iterator[str]:
    """Timeouts that do not fit together. They do not stop a start, but may stop the job some night."""
    limit, pause = launch.config.checkpoint.timeout_s, launch.config.checkpoint.min_pause_s
    for name, sink in launch.sinks.items():
        for note in sink.timing_notes(limit):
            yield f"sink {name}: {note}"
    if limit is not None and pause >= limit:
        yield f"min_pause ({pause:g} s) is not below timeout ({limit:g} s): is that intended?"
    if limit is not None and limit < 1:
        yield f"timeout is {limit:g} s; Spark alone sometimes takes that long for an epoch"


def _overlap(launch: Launch) -> Iterator[str]:
    """What is different for whoever reads the targets."""
    if launch.config.checkpoint.overlaps:
        if launch.config.guarantee is Guarantee.EXACTLY_ONCE:
            yield (
                "overlap is on: an epoch is committed while Spark runs the next one, so its rows may be seen later by "
                "up to one epoch, and processAllAvailable() of the query does not wait for them"
            )
        else:
            yield f"overlap is on and has no effect: with {launch.config.guarantee.word} nothing is committed"


def plan_notes(launch: Launch) -> list[str]:
    """What the plan does that is worth knowing."""
    return [
        *_accepted(launch),
        *_stale_rows(launch),
        *_last_rows(launch),
        *_chance(launch),
        *watermark.notes(launch.watermarks, launch.fingerprints),
        *_one_scan(launch),
    ]


def _accepted(launch: Launch) -> Iterator[str]:
    with suppress(FencepostError, OSError):  # the check of the plan reports it
        if launch.config.allow_plan_changes and launch.noted is not None:
            yield from arrangement.accepted(launch.noted, launch.numbered)


def _one_scan(launch: Launch) -> Iterator[str]:
    for one in launch.scans:
        yield f"{len(one.names)} branches are one scan, which reads each record once: {', '.join(one.names)}"


def _stale_rows(launch: Launch) -> Iterator[str]:
    """Not a refusal: nobody can tell from a plan that a sum never falls below its bound again."""
    for name, sink in launch.sinks.items():
        if launch.modes[name] != "update" or not sink.capabilities.replaces:
            continue
        frame, key = launch.frames[name], sink.keyed.key if sink.keyed is not None else ()
        if columns := plan.changing_columns(frame, key):
            yield (
                f"sink {name}: the key has {', '.join(columns)}, which the aggregate may change. The row is then "
                "written under another key, and the one that was written before stays in the target. Use the columns "
                "that the aggregate groups by as the key"
            )
        if plan.rows_expire(frame):
            yield (
                f"sink {name}: a filter behind the aggregate goes by the current time. When a row no longer passes "
                "it, nothing is emitted, and the row stays in the target. Write the time as a column, and filter by it "
                "when you read"
            )
        if plan.rows_may_leave(frame):
            yield (
                f"sink {name}: a filter behind the aggregate, or a join, drops a row that no longer passes it, and the "
                "row that was written before stays in the target. In place of the filter, write "
                '.withColumn("is_deleted", ~coalesce(<condition>, lit(False))), in place of the join an outer one and '
                'the same for rows without a match, and set deletes="is_deleted" on the sink: it removes such rows. '
                "Or write the condition as a column, and filter when you read"
            )


def _last_rows(launch: Launch) -> Iterator[str]:
    """Where the order of a key's rows is not as exact as everything else."""
    for name, sink in launch.sinks.items():
        keyed = sink.keyed
        if keyed is None or not _takes(sink, launch.modes[name]):
            continue
        if keyed.order_by and not keyed.greatest:
            yield (
                f"sink {name}: order_by compares the rows of one epoch; across epochs the later one wins. If a row "
                "comes late, the result depends on where epochs are cut, which a crash may change. Then aggregate by "
                "the key: max(struct(<order>, <value>)); or write to a table in a database, which compares"
            )
        elif keyed.order_by and keyed.deletes is not None:
            yield (
                f"sink {name}: a removed row leaves nothing to compare with, so an older row of its key that arrives "
                "in a later epoch is written again. If rows may come that late, keep the marker as a column instead of "
                "deletes=, and filter when you read"
            )
        is_loose = keyed.keeps_all and keyed.deletes is None and not keyed.order_by and not keyed.unique
        if is_loose and not keys.has_last_rows(launch.frames[name], keyed.key):
            yield (
                f"sink {name}: messages of one key may come from several tasks, and their order is chance. If the "
                "topic is compacted, or a reader keeps the last message of a key, set order_by= on the sink, or group "
                "by the key; unique_key=True says that no key occurs twice"
            )


def _chance(launch: Launch) -> Iterator[str]:
    for name, frame in launch.frames.items():
        for what, why in fork.by_chance(frame).items():
            yield f"sink {name}: {what} {why}"
