"""A job: read → plain DataFrames → write → run.

Never runs a query without recovery before it, and never lets two branches of a job be decided apart.
"""

from __future__ import annotations

import html
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from fencepost import state as backends
from fencepost.beginning import BridgeName, Settings, check_may_start
from fencepost.checkpointing import Checkpoint, delete, one_interval, settled
from fencepost.dead_letters import BadRecords
from fencepost.errors import BadConfig, FencepostError, Where
from fencepost.failures import names_of
from fencepost.guarantee import READS_UNCOMMITTED, Guarantee, Link, Report, check, sink_link, source_link
from fencepost.observe import requests
from fencepost.observe.events import Kind
from fencepost.observe.observer import Callback, Observer
from fencepost.run import Run
from fencepost.signals import stopping_on_signals
from fencepost.sinks.contract import Sink
from fencepost.sources.contract import Source
from fencepost.spark import branches, connector, inspect, keyed, named, session, tasks
from fencepost.state import Backend
from fencepost.supervise import link, warm
from fencepost.supervise.keeper import Keeper
from fencepost.supervise.reasons import Tolerance
from fencepost.supervise.strategies import Strategy, one_strategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


class Job(BadRecords):
    """One streaming job: its checkpoint, its guarantee, its branches.

        job = fp.Job("wordcount", checkpoint="checkpoints/wordcount")
        lines = job.read(fp.Files("in", format="text"))
        job.write(lines.groupBy("value").count(), fp.SQLite("out.db", table="counts", key="value"))
        job.run()

    The mistake people make: one checkpoint for two jobs, or a new job name on an old checkpoint. A checkpoint belongs
    to one job, by name, for its whole life.
    """

    def __init__(
        self,
        name: str,
        *,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        state: Backend | None = None,
        guarantee: str | Guarantee = "exactly_once",
        output_mode: str | None = None,
        interval: str | None = None,
        spark: SparkSession | None = None,
        conf: Mapping[str, str] | None = None,
        bridge: BridgeName | None = None,
        adopt: bool = False,
        sinks_changed: bool = False,
        restart: Strategy | None = None,
    ) -> None:
        """Name the job and its checkpoint; nothing is started yet.

        Args:
            name: The job's name, the same at every start.
            checkpoint: The folder of its ledger and of Spark's own log, or fp.Checkpoint(folder, …) with options.
            state: fp.RocksDB(), fp.FileSystem() or fp.Memory(); by default what the checkpoint was begun with, and
                RocksDB for a new one.
            guarantee: 'exactly_once', 'at_least_once' or 'at_most_once'.
            output_mode: 'append', 'update' or 'complete' for all branches; by default update if a branch aggregates.
            interval: The shortest time between two epochs ('1 second'), as in fp.Checkpoint; by default as fast as
                data comes.
            spark: A session that exists (notebook, cluster, spark-submit); by default one is made.
            conf: Spark settings for the session that is made.
            bridge: 'jvm' or 'foreach_batch'; by default the first if the jar is on the class path.
            adopt: Take over a checkpoint that plain Spark began; its last epoch must be complete.
            sinks_changed: Declare that sinks were added, removed or given other targets since the last start. A new
                one gets rows from the next epoch on. Take it out again once the job has run.
            restart: fp.FixedDelay(…), fp.FailureRate(…), fp.ExponentialDelay(…) or fp.NoRestart(): when `run` starts a
                failed query again. By default never, and as fp.ExponentialDelay() under `fencepost run`.
        """
        if str(name) != name or not name.strip():
            raise BadConfig("bad_job_name", "A job needs a name.", next="Name it: fp.Job('orders', …).")
        self.name = name
        self._checkpoint = settled(checkpoint, state, name)
        self._state = state
        self._guarantee = Guarantee.parse(guarantee, job=name)
        self._mode = inspect.check_mode(output_mode, name) if output_mode else None
        self._interval = one_interval(interval, self._checkpoint, name)
        self._spark = spark
        self._made = spark is None
        self._conf = dict(conf or {})
        self.bridge = bridge
        self._adopt = adopt
        self._sinks_changed = sinks_changed
        self.is_known = True  # where the command line looks for jobs
        self.sources: list[Source] = []  # what was read, other than DataFrames
        self._restart = one_strategy(restart, name)
        self._observer = Observer(name)
        self._branches: dict[str, tuple[Any, Sink]] = {}
        self._run: Run | None = None
        self._stop = threading.Event()
        if spark is not None:
            session.check_session(spark, name)

    @property
    def checkpoint(self) -> str:
        """The folder of its ledger and of Spark's own log."""
        return self._checkpoint.place

    @property
    def spark(self) -> SparkSession:
        """The SparkSession: yours, or one made with good settings at first use."""
        if self._spark is None:
            conf = {**link.settings(), **self._conf}
            self._spark = session.make_session(self.name, conf, jar=self.bridge != "foreach_batch")
            session.check_session(self._spark, self.name)
        return self._spark

    def read(self, source: Source | DataFrame, *, name: str | None = None) -> DataFrame:
        """A plain streaming DataFrame from a source (or any streaming DataFrame that you made yourself).

        With a `name` for every source, sources may be added, removed and moved between two starts.
        """
        if hasattr(source, "isStreaming"):
            if name is not None:
                raise BadConfig(
                    "named_too_late",
                    "A DataFrame's source has its name, or none, from where it was read.",
                    where=Where(job=self.name),
                    next="Read the source with job.read(source, name=…), or name it in Spark: readStream.name(…).",
                )
            return cast("DataFrame", source)
        if not hasattr(source, "load"):
            raise BadConfig(
                "not_a_source",
                f"{type(source).__name__} is no source.",
                where=Where(job=self.name),
                next="Give a source (fp.Files('in', format='text')) or a streaming DataFrame.",
            )
        self._connect(source)
        self.sources.append(source)
        try:
            with named.allowed(self.spark, name):
                return cast("DataFrame", source.load(named.reader(self.spark, name, self.name)))
        except FencepostError as error:
            raise error.at(job=self.name) from error.__cause__
        except Exception as error:
            raise BadConfig(
                "source_refused",
                f"Spark cannot read this source: {names_of(error)}.",
                where=Where(job=self.name),
                next="See that the folder or service is there and that schema and options are right (Spark's own words "
                "are above).",
            ) from error

    def _connect(self, source: Source) -> None:
        """A session is made with the connector that its first source needs; for a later one it is added."""
        if getattr(source, "connector", None) != "kafka":
            return
        spark, plain = self._spark, self._conf
        if spark is None:
            self._conf = connector.with_package(plain, session.version(self.name))
            try:
                spark = self.spark
            except FencepostError:
                raise
            except Exception:  # noqa: BLE001 - Spark does not start without a package; without Java it never does
                self._conf = plain
        connector.bring(spark or self.spark, self.name, ours=self._made)

    def write(self, frame: DataFrame, sink: Sink) -> Self:
        """Send a DataFrame to a sink. Several calls are branches of one query: one epoch, one decision.

        The mistake people make: starting a second job for the second sink. Two jobs are decided apart, and after a
        crash one sink is ahead of the other.
        """
        if not isinstance(sink, Sink):
            raise BadConfig(
                "not_a_sink",
                f"{type(sink).__name__} is no sink.",
                where=Where(job=self.name),
                next="Give a sink: fp.SQLite('out.db', table='rows'), or one of your own that derives from fp.Sink.",
            )
        if sink.name in self._branches:
            raise BadConfig(
                "sink_twice",
                f"Two branches go to a sink named {sink.name!r}.",
                where=Where(job=self.name),
                next="Union the DataFrames, or give the sinks different names (name=…) and targets.",
            )
        inspect.check_frame(frame, self.name)
        self._branches[sink.name] = (frame, sink)
        return self

    @property
    def frames(self) -> dict[str, DataFrame]:
        """The branches by their sinks' names, in the order of these: Spark numbers state by its place in the plan."""
        return {name: self._branches[name][0] for name in sorted(self._branches)}

    @property
    def sinks(self) -> dict[str, Sink]:
        """Where the branches go."""
        return {name: self._branches[name][1] for name in sorted(self._branches)}

    @property
    def mode(self) -> str:
        """The output mode of all branches."""
        return self._mode or ("update" if any(map(inspect.needs_update, self.frames.values())) else "append")

    def links(self) -> list[Link]:
        """Every link of the chain with the best guarantee it allows."""
        found = [
            source_link(source.kind, replayable=source.replayable)
            for frame, _ in self._branches.values()
            for source in inspect.sources_of(frame)
        ]
        sinks = [sink_link(name, sink.capabilities) for name, (_, sink) in self._branches.items()]
        return [*dict.fromkeys(found), *self._state_links(), *sinks]

    def _state_links(self) -> list[Link]:
        frames = [frame for frame, _ in self._branches.values()]
        return backends.links(self.spark, frames, self._state, self._checkpoint.place, self.name)

    def check(self) -> Report:
        """Which guarantee holds end to end, and why; before any data flows."""
        if not self._branches.keys() - self._dead:
            raise BadConfig(
                "nothing_to_write",
                "The job writes nothing.",
                where=Where(job=self.name),
                next="Call job.write(…) first.",
            )
        jar = self.bridge != "foreach_batch" and session.bring_jar(self.spark)
        notes = [] if jar else [session.WITHOUT_JAR]
        said = {name: sink.capabilities.note for name, (_, sink) in self._branches.items()}
        notes += [f"sink {name}: {note}" for name, note in said.items() if note]
        if any(
            source.reads_uncommitted for frame, _ in self._branches.values() for source in inspect.sources_of(frame)
        ):
            notes.append(READS_UNCOMMITTED)
        notes += keyed.notes({name: frame for name, (frame, _) in self._branches.items()})
        return Report(self.name, self._guarantee, tuple(self.links()), tuple(notes))

    def start(self, *, until: Literal["stopped", "available"] = "stopped") -> StreamingQuery:
        """Recover and start; return Spark's own StreamingQuery. `run` does this and waits."""
        check_may_start(self.name)
        if self.is_known:
            link.when_told_to(self.name, self.checkpoint, self._restart, partial(warm.up, self))
        run = self._start(until, Tolerance(self._checkpoint.tolerable_failures))
        run.end_by_itself(self.cancel)
        return cast("StreamingQuery", run.query)

    def _start(self, until: str, tolerance: Tolerance) -> Run:
        if until not in ("stopped", "available"):
            where = Where(job=self.name)
            raise BadConfig("bad_until", f"until={until!r} is unknown.", where=where, next="'stopped' or 'available'.")
        check(self._guarantee, self.check().links, job=self.name)
        if self._run is not None and self._run.query.isActive:
            raise BadConfig(
                "already_running", "The job runs already.", where=Where(job=self.name), next="Call job.stop() first."
            )
        if self._run is not None:
            with suppress(FencepostError):  # whoever waited for it was told
                self._run.end()
        frames, chosen = self.frames, self._settings(tolerance)
        writer = branches.union(self._written_in_tasks(frames)).writeStream.outputMode(chosen.mode)
        writer = writer.queryName(self.name)
        writer = writer.trigger(availableNow=True) if until == "available" else self._with_interval(writer)
        self._run = Run.start(self.spark, writer, frames, self.sinks, chosen)
        return self._run

    def _settings(self, tolerance: Tolerance) -> Settings:
        return Settings(
            job=self.name,
            checkpoint=self._checkpoint.place,
            guarantee=self._guarantee,
            mode=self.mode,
            bridge=self.bridge,
            adopt=self._adopt,
            sinks_changed=self._sinks_changed,
            state=self._state,
            observer=self._observer,
            tolerance=tolerance,
            is_known=self.is_known,
            **self._checkpoint.for_a_run,
        )

    def _written_in_tasks(self, frames: Mapping[str, Any]) -> dict[str, Any]:
        """The branches whose sink is written to by the tasks, with that at their end."""
        if self._guarantee is not Guarantee.EXACTLY_ONCE:  # the weaker levels send plainly, from the driver
            return dict(frames)
        writes = {name: self._branches[name][1].in_tasks(self.name) for name in frames}
        return {
            name: frame if (write := writes[name]) is None else tasks.written_in_tasks(frame, write)
            for name, frame in frames.items()
        }

    def _with_interval(self, writer: Any) -> Any:
        try:
            paced = writer.trigger(processingTime=self._interval)
        except Exception as error:
            raise BadConfig(
                "bad_interval",
                f"interval={self._interval!r} is no time.",
                where=Where(job=self.name),
                next="Write it as '1 second', '5 minutes'.",
            ) from error
        endless = any(inspect.never_pauses(frame) for frame, _ in self._branches.values())
        return writer.trigger(processingTime=keyed.PAUSE) if endless and inspect.pause_ms(paced) == 0 else paced

    def run(self, *, until: Literal["stopped", "available"] = "stopped") -> None:
        """Run until stopped, or until all there is has been processed; SIGTERM and SIGINT stop at an epoch's end."""
        check_may_start(self.name)
        self._stop.clear()
        tolerance = Tolerance(self._checkpoint.tolerable_failures)
        failures, strategy, tell = link.when_told_to(self.name, self.checkpoint, self._restart, partial(warm.up, self))
        with link.telling_the_end(), stopping_on_signals(self._stop):
            Keeper(
                partial(self._start, until, tolerance),
                self.cancel,
                self._stop,
                self._observer,
                strategy=strategy,
                tolerance=tolerance,
                failures=failures,
                tell=tell,
                wish=partial(requests.find_between, self._checkpoint.place),
            ).run()

    def on_complete(self, callback: Callback) -> Callback:
        """Call a function after every epoch, when its rows are visible and will stay: `@job.on_complete`.

        At least once: after a crash the newest epoch is told again (`event.again`). It runs between two epochs, which
        wait for it; if it raises, that is noted, and changes nothing. The mistake people make: sending from here what
        must be sent exactly once. Write it to a sink.
        """
        self._observer.call(callback, Kind.COMPLETE)
        return callback

    def on_failure(self, callback: Callback) -> Callback:
        """Call a function when an epoch, the query or its start failed; the event has the error's words."""
        self._observer.call(callback, Kind.FAILED, Kind.TRIED_AGAIN, Kind.FENCED)
        return callback

    def on_restart(self, callback: Callback) -> Callback:
        """Call a function before the query is started again in this process, and before the wait for it."""
        self._observer.call(callback, Kind.RESTARTED)
        return callback

    def stop(self) -> None:
        """End the query; an epoch that is being written is finished first, one whose tasks still run is dropped."""
        self._stop.set()
        if self._run is not None and self._observer.is_telling:
            self._run.ask("stop")
        elif self._run is not None:
            self._run.stop()

    def cancel(self) -> None:
        """End the query without waiting for data; an epoch whose tasks still run is dropped and runs again later.

        With `retain="delete_on_cancellation"` the checkpoint is then deleted, if nothing needs it any more.
        """
        self._stop.set()
        if self._run is not None and self._observer.is_telling:
            self._run.ask("cancel")
        elif self._run is not None:
            self._run.cancel()
            if self._checkpoint.deletes:
                delete(self._checkpoint.place, self.name, self._run.seal())

    def __enter__(self) -> Self:
        """`with fp.Job(…) as job:` stops the job at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop cleanly, or at once if the block failed."""
        self.cancel() if kind else self.stop()

    def __repr__(self) -> str:
        """Name, guarantee, branches."""
        return f"<fencepost.Job {self.name!r} {self._guarantee.word} → {', '.join(self._branches) or 'nothing yet'}>"

    def _repr_html_(self) -> str:
        """For notebooks: the links and the guarantee they give."""
        rows = self.check().rows if self._branches else []
        head = "<tr><th>link</th><th>at best</th><th>why</th></tr>"
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<b>{html.escape(self.name)}</b><table>{head}{cells}</table>"
