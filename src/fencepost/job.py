"""A job: read → plain DataFrames → write → run.

    lines ──→ parse | map ──┬─ good rows ───→ plain DataFrame ──→ job.write(…)
                            └─ bad records ─→ the dead letters' sink

Never runs a query without recovery first, and never decides two branches of a job separately. A bad record either fails
the epoch or goes to the dead letters, under the same decision: it is in the rows or in the dead letters of its epoch,
never in both and never in neither (see spark/bad_records.py; for rows that a sink refuses, runtime/sieve.py).
"""

from __future__ import annotations

import html
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from fencepost import connectors, settings
from fencepost.config import Backend, BridgeName, Checkpoint, RunConfig, Strategy, one_strategy, settled
from fencepost.contract import Dataset, Sink, Source
from fencepost.errors import UNCHANGED, BadConfig, FencepostError, Tolerance, Where, require, seconds
from fencepost.guarantee import Guarantee, Report
from fencepost.observe import commands, console, journal, picture, wording
from fencepost.observe.archive import JobArchive, Summary
from fencepost.observe.events import Kind
from fencepost.observe.journal import Callback, Observer
from fencepost.observe.terminal import LiveLine, ProgressLine
from fencepost.runtime.checks import Launch, Until, plan_notes
from fencepost.runtime.keeper import Keeper, stopping_on_signals
from fencepost.runtime.query import Run
from fencepost.runtime.sieve import DeadLetters
from fencepost.runtime.start import check_may_start, is_only_looked_at
from fencepost.runtime.start import start as start_query
from fencepost.spark import bad_records, connector, fork, gateway, plan, spark_session
from fencepost.spark.diagnosis import names_of
from fencepost.spark.progress import Intake
from fencepost.store import place
from fencepost.store.retry import at_most
from fencepost.supervise import link, warmup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from fencepost.observe.lineage_events import LineageSender, Named

OnBadRecord = Literal["fail", "dead_letter"]


class Job:
    """One streaming job: its checkpoint, its guarantee, its branches.

    It runs in epochs. An epoch is one micro-batch of Spark: the rows between two sets of source offsets, which end up
    in all sinks or in none.

        job = fp.Job("wordcount", checkpoint="checkpoints/wordcount")
        lines = job.read(fp.Files("in", format="text"))
        job.write(lines.groupBy("value").count(), fp.SQLite("out.db", table="counts", key="value"))
        job.run()

    Note: a checkpoint belongs to one job, by name, for its whole life. Never give two jobs one checkpoint, nor an old
    checkpoint a new job name.
    """

    def __init__(
        self,
        name: str,
        *,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        state: Backend | None = None,
        guarantee: str | Guarantee | None = None,
        output_mode: str | None = None,
        spark: SparkSession | None = None,
        conf: Mapping[str, str] | None = None,
        bridge: BridgeName | None = None,
        adopt: bool = False,
        allow_sink_changes: bool = False,
        allow_plan_changes: bool = False,
        deterministic_udfs: bool = False,
        restart: Strategy | None = None,
        quiet: bool | None = None,
        jvm_options: str | None = None,
        one_scan: bool | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Name the job and its checkpoint; this starts nothing yet.

        What you leave out of checkpoint, state, guarantee, bridge, restart, quiet, jvm_options and one_scan, and of the
        options of fp.Checkpoint, may also come from the environment (FENCEPOST_GUARANTEE=…) or from the file
        fencepost.toml; it is read here, once.

        Args:
            name: The job's name, the same at every start.
            checkpoint: The folder for its ledger and Spark's own log, or fp.Checkpoint(folder, …) with options.
            state: fp.RocksDBState(), fp.FileSystemState() or fp.MemoryState(); by default what the checkpoint was
                created with, and RocksDB for a new one.
            guarantee: 'exactly_once' (the default), 'at_least_once' or 'at_most_once'.
            output_mode: 'append', 'update' or 'complete' for all branches; by default update if a branch aggregates.
            spark: An existing session (notebook, cluster, spark-submit); by default one is created.
            conf: Spark settings for the session that is created.
            bridge: 'jvm' or 'foreach_batch'; by default 'jvm' if the jar is on the class path.
            adopt: Take over a checkpoint created by plain Spark; its last epoch must be complete.
            allow_sink_changes: Accept that sinks were added, removed or given other targets since the last start; a new
                one gets rows from the next epoch on. Remove it once the job has run: without it, a wrong target is
                refused.
            allow_plan_changes: Accept that filters, columns or joins below an operator with state, or the options that
                choose a source's records, changed since the last start. The state keeps what the old plan made of
                earlier records. Remove it once the job has run: without it, such a change is refused.
            deterministic_udfs: Your Python functions always return the same result for the same record, so several
                branches may each call them. By default they need `share`.
            restart: fp.FixedDelay(…), fp.FailureRate(…), fp.ExponentialDelay(…) or fp.NoRestart(): when `run` restarts
                a failed query. By default never; under `fencepost run`, fp.ExponentialDelay().
            quiet: True: `run` prints no progress; False: it does, even in your own session. By default it does in a
                session created for the job.
            jvm_options: Options for Spark's JVM in a session that is created, in place of fencepost's own; 'none' for
                none. Those in conf win over both.
            one_scan: False: every branch reads its source for itself. By default branches without state read it once,
                where the rows are the same either way; `check` names them.
            environment: Where to look for FENCEPOST_… variables; by default in the process's own environment. For
                tests.
        """
        if str(name) != name or not name.strip():
            raise BadConfig("bad_job_name", "The job has no name.", next="Give it one: fp.Job('orders', …).")
        outside = settings.read(name, environment)
        state = outside.choose("state", state)
        guarantee = outside.choose("guarantee", guarantee)
        self._quiet: bool | None = outside.choose("quiet", quiet)
        self._jvm_options: str | None = settings.check_jvm_options(outside.choose("jvm_options", jvm_options), name)
        self._config = RunConfig(
            job=name,
            checkpoint=settled(outside.checkpoint(checkpoint, state), state, name),
            guarantee=Guarantee.EXACTLY_ONCE if guarantee is None else Guarantee.parse(guarantee, job=name),
            state=state,
            output_mode=plan.check_mode(output_mode, name) if output_mode else None,
            bridge=outside.choose("bridge", bridge),
            adopt=adopt,
            allow_sink_changes=allow_sink_changes,
            allow_plan_changes=allow_plan_changes,
            deterministic_udfs=deterministic_udfs,
            one_scan=outside.choose("one_scan", one_scan) is not False,
            restart=outside.choose("restart", one_strategy(restart, name)),
            outside=outside.all,  # the last: by now all are chosen
        )
        self._spark = spark
        self._made = spark is None
        self._ours = False  # made for this job, with its JVM
        self._conf = dict(conf or {})
        self._sources: list[Source] = []  # what was read, other than DataFrames
        self._observer = Observer(name)
        self._lineage: LineageSender | None = None
        self._shown: Any = None
        """Where a notebook shows it."""
        self._branches: dict[str, tuple[Any, Sink]] = {}
        self._dead: frozenset[str] = frozenset()  # the branches of dead letters
        self._aside: dict[str, DeadLetters] = {}  # by sink: where the rows go that it refuses
        self._vouched: tuple[plan.PlanSource, ...] = ()  # the sources that are replayable by the user's word
        self._run: Run | None = None
        self._stop = threading.Event()
        if spark is not None:
            spark_session.check_session(spark, name)

    @property
    def name(self) -> str:
        """The job's name, the same at every start."""
        return self._config.job

    @property
    def checkpoint(self) -> str:
        """The folder with its ledger and Spark's own log."""
        return self._config.place

    @property
    def spark(self) -> SparkSession:
        """The SparkSession: yours, or one created with good settings on first use."""
        if self._spark is None:
            self._ours = spark_session.active_context() is None
            self._say("starting Spark …")
            conf = {**link.settings(), **self._conf}
            self._spark = spark_session.make_session(
                self.name, conf, jar=self._config.bridge != "foreach_batch", jvm_options=self._jvm_options
            )
            if (started := gateway.chosen()) is not None and self._ours and started.note:
                self._say(started.note)
            spark_session.check_session(self._spark, self.name)
        return self._spark

    def read(self, source: Source | DataFrame, *, name: str | None = None, replayable: bool = False) -> DataFrame:
        """A plain streaming DataFrame from a source (or any streaming DataFrame that you made yourself).

        Args:
            source: fp.Kafka(…), fp.Files(…), your own fp.Source, or a streaming DataFrame.
            name: If every source has a name, sources can be added, removed and reordered between starts.
            replayable: Your word for a source that fencepost does not know: a range of its offsets returns the same
                records when it is read again, also in a new process.
        """
        frame = self._read(source, name)
        if replayable:
            self._vouched += tuple(plan.sources_of(frame))
        return frame

    def _read(self, source: Source | DataFrame, name: str | None) -> DataFrame:
        if hasattr(source, "isStreaming"):
            if name is not None:
                raise BadConfig(
                    "named_too_late",
                    "name=… has no effect on a DataFrame: a source gets its name when it is read.",
                    where=Where(job=self.name),
                    next="Read the source with job.read(source, name=…), or name it in Spark: readStream.name(…).",
                )
            return cast("DataFrame", source)
        if not isinstance(source, Source):
            raise BadConfig(
                "not_a_source",
                f"{type(source).__name__} is not a source.",
                where=Where(job=self.name),
                next="Pass a source (fp.Files('in', format='text')), one of your own that derives from fp.Source, or a "
                "streaming DataFrame.",
            )
        self._connect(source)
        self._sources.append(source)
        try:
            with plan.allowed(self.spark, name):
                return cast("DataFrame", source.load(plan.reader(self.spark, name, self.name)))
        except FencepostError as error:
            raise error.at(job=self.name) from error.__cause__
        except Exception as error:
            path = getattr(source, "path", None)
            raise self._source_refused(names_of(error), None if path is None else str(path)) from error

    def _source_refused(self, names: str, path: str | None) -> BadConfig:
        """Spark could not load a source; a folder of this machine that is not there is named."""
        where = Where(job=self.name, path=path)
        if path is not None and ":/" not in path and "PATH_NOT_FOUND" in names:
            folder = Path(path).absolute()
            if not folder.exists():
                return BadConfig(
                    "source_refused",
                    f"Folder {folder} does not exist.",
                    where=where,
                    next="Create the folder, or correct the path.",
                )
        return BadConfig(
            "source_refused",
            f"Spark cannot read this source: {names}.",
            where=where,
            next="Check that the folder or service exists and that the schema and options are right. "
            "FENCEPOST_TRACE=1 shows Spark's own message.",
        )

    def _connect(self, source: Source) -> None:
        """Make sure the session has the connector that this source needs."""
        if source.package is not None:
            spark = self.spark  # whose it is decides who speaks
            said: list[str] = []
            with ProgressLine(is_silent=not console.wanted(self._quiet, ours=self._ours)) as tell:
                connector.bring(source.package, spark, self.name, ours=self._made, say=said.append, tell=tell)
            for text in said:
                self._say(text)

    def _say(self, text: str) -> None:
        if console.wanted(self._quiet, ours=self._ours):
            LiveLine().say(text)

    def write(
        self,
        frame: DataFrame,
        sink: Sink,
        *,
        on_bad_record: OnBadRecord = "fail",
        dead_letters: Sink | None = None,
    ) -> Self:
        """Send a DataFrame to a sink. Several calls are branches of one query: one epoch, one decision.

        Note: do not start a second job for a second sink. Two jobs decide separately, and after a crash one sink is
        ahead of the other.

        Args:
            frame: A streaming DataFrame.
            sink: Where its rows go.
            on_bad_record: If the target refuses a row because of its values (NULL in a NOT NULL column, too long, out
                of range, a CHECK, a message over the topic's limit): 'fail' fails the epoch before its decision;
                'dead_letter' sends the row to `dead_letters` and writes the others. For tables in a database and Kafka.
            dead_letters: The sink for refused rows: source, no position, the row as JSON, error. May be shared with
                `parse` and `map`.
        """
        if not isinstance(sink, Sink):
            raise BadConfig(
                "not_a_sink",
                f"{type(sink).__name__} is not a sink.",
                where=Where(job=self.name),
                next="Pass a sink: fp.SQLite('out.db', table='rows'), or one of your own that derives from fp.Sink.",
            )
        if sink.name in self._branches:
            raise BadConfig(
                "sink_twice",
                f"Two branches write to a sink named {sink.name!r}.",
                where=Where(job=self.name),
                next="Union the DataFrames, or give the sinks different names (name=…) and targets.",
            )
        dead = self._dead_letters(on_bad_record, dead_letters)
        plan.check_frame(frame, self.name)
        if dead is not None and dead.name == sink.name:
            raise self._taken(dead)
        frame = plan.inlined(frame)
        self._branches[sink.name] = (frame, sink)
        if dead is not None:
            source, nothing = bad_records.nothing_from(frame)
            if dead.name not in self._dead:
                self._branches[dead.name] = (nothing, dead)
                self._dead |= {dead.name}
            self._aside[sink.name] = DeadLetters(dead.name, source)
        return self

    def parse(
        self,
        frame: DataFrame,
        *,
        schema: str | StructType,
        column: str = "value",
        keep: Sequence[str] = (),
        on_bad_record: OnBadRecord = "fail",
        dead_letters: Sink | None = None,
    ) -> DataFrame:
        """Parse a column of JSON strings into columns.

            orders = job.parse(
                lines,
                schema="id BIGINT NOT NULL, amount DOUBLE",
                on_bad_record="dead_letter",
                dead_letters=fp.SQLite("dead.db", table="dead_letters"),
            )

        A record is bad if it is not a JSON object, has trailing characters, has a value of another type, or lacks a
        NOT NULL field. A field that the schema does not name is ignored.

        Note: `from_json` alone silently turns what it cannot read into null.

        Args:
            frame: A streaming DataFrame.
            schema: The fields, 'id BIGINT NOT NULL, amount DOUBLE' or a StructType.
            column: The column with the strings; bytes are read as UTF-8.
            keep: Other columns to keep.
            on_bad_record: 'fail' fails the epoch before its decision; 'dead_letter' sends the record to `dead_letters`.
            dead_letters: The sink for bad records: source, position, record, error. Several steps may share it.
        """
        dead = self._dead_letters(on_bad_record, dead_letters, frame)
        plan.check_frame(frame, self.name)
        good, bad = bad_records.parsed(
            plan.inlined(frame), self.name, schema, column, tuple(keep), sink=None if dead is None else dead.name
        )
        return self._split(good, bad, dead)

    def map(
        self,
        frame: DataFrame,
        fn: Callable[[Any], Any],
        *,
        output: str | StructType,
        on_bad_record: OnBadRecord = "fail",
        dead_letters: Sink | None = None,
    ) -> DataFrame:
        """Map every record with a Python function: `fn(record)` returns a row, a list of rows, or None for none.

            def to_order(line):
                number, amount = line.value.split(";")
                return int(number), float(amount)

            orders = job.map(
                lines,
                to_order,
                output="id BIGINT, amount DOUBLE",
                on_bad_record="dead_letter",
                dead_letters=fp.SQLite("dead.db", table="dead_letters"),
            )

        The record is a Row; a returned row is a tuple, a dict or a Row. A record is bad if `fn` raises, or returns a
        value that its column cannot hold. A result that is not a row at all is a bug in `fn`, and fails the epoch.

        With dead letters, `fn` is called once per record and attempt of the epoch, however many branches use its rows:
        its rows go through a shuffle, which keeps the order within a partition. So it may look things up, and may fail
        now and then. Note: if `fn` catches an exception and returns None, the record is lost.

        Args:
            frame: A streaming DataFrame.
            fn: Turns a record into its rows.
            output: The columns of the rows, 'id BIGINT, amount DOUBLE' or a StructType.
            on_bad_record: 'fail' fails the epoch before its decision; 'dead_letter' sends the record to `dead_letters`.
            dead_letters: The sink for bad records: source, position, record, error. Several steps may share it.
        """
        dead = self._dead_letters(on_bad_record, dead_letters, frame)
        plan.check_frame(frame, self.name)
        good, bad = bad_records.mapped(
            plan.inlined(frame), self.name, fn, output, sink=None if dead is None else dead.name
        )
        return self._split(good, bad, dead)

    def share(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed once per epoch for all branches that are built from them.

            scored = job.share(lines.withColumn("score", model("value")))
            job.write(scored.where("score >= 0.5"), good)
            job.write(scored.where("score < 0.5"), bad)

        Spark computes each branch from the sources on its own. What may differ from one computation to the next (a
        Python function, a join with a table that changes, `first`) would give each branch its own result, and
        a record could be in both sinks or in neither; so a job that does this without `share` is refused. The rows go
        through one shuffle, which keeps the order within a partition.

        Note: for random values use fp.rand() and fp.uuid() here; Spark draws a new seed per branch for its own.
        """
        plan.check_frame(frame, self.name)
        return fork.share(plan.inlined(frame), self.name)

    @property
    def _frames(self) -> dict[str, DataFrame]:
        """The branches, sorted by sink name; a start puts them into their noted order."""
        return {name: self._branches[name][0] for name in sorted(self._branches)}

    @property
    def _sinks(self) -> dict[str, Sink]:
        return {name: self._branches[name][1] for name in sorted(self._branches)}

    def _launch(self, **more: Any) -> Launch:
        """What a start of this job, or a check of it, needs to know."""
        return Launch(
            self._config,
            self.spark,
            dict(self._branches),
            self._observer,
            dead=self._dead,
            aside=dict(self._aside),
            vouched=self._vouched,
            made=self._ours,
            **more,
        )

    def check(self) -> Report:
        """Which guarantee holds end to end, and which link gives or limits it; before any data flows."""
        launch = self._launch(looks=True)
        return replace(launch.report, notes=(*launch.report.notes, *plan_notes(launch)))

    def start(self, *, until: Until = "stopped") -> StreamingQuery:
        """Recover and start; return Spark's own StreamingQuery. `run` does this and waits."""
        check_may_start(self.name)
        if self._config.is_known:
            link.when_told_to(self.name, self.checkpoint, self._config.restart, partial(warmup.up, self))
        run = self._start(until, Tolerance(self._config.checkpoint.tolerates))
        run.end_by_itself(self.cancel)
        return cast("StreamingQuery", run.query)

    def run(self, *, until: Until = "stopped") -> None:
        """Run until stopped, or until all available data is processed; SIGTERM and SIGINT stop it after the epoch."""
        check_may_start(self.name)
        self._stop.clear()
        tolerance = Tolerance(self._config.checkpoint.tolerates)
        told = link.when_told_to(self.name, self.checkpoint, self._config.restart, partial(warmup.up, self))
        failures, strategy, tell = told
        with link.telling_the_end(), stopping_on_signals(self._stop), self._speaking() as show:
            Keeper(
                partial(self._start, until, tolerance),
                self.cancel,
                self._stop,
                self._observer,
                strategy=strategy,
                tolerance=tolerance,
                failures=failures,
                tell=tell,
                wish=partial(commands.find_between, self.checkpoint),
                show=show,
            ).run()

    @contextmanager
    def _speaking(self) -> Iterator[Callable[[Run], None]]:
        """Print progress, if that is wanted; yields a function to call now and then while a query runs."""
        _ = self.spark  # whose it is decides
        if not console.wanted(self._quiet, ours=self._ours):
            yield lambda run: None
            return
        told = console.Console(self.name, self._config.guarantee.word, self._sinks, self._dead)
        sources = [source for frame in self._frames.values() for source in plan.sources_of(frame)]
        intake: Intake | None = None
        runs = False

        def show(run: Run) -> None:
            nonlocal runs, intake
            if not runs:
                told.start(dict.fromkeys(one.kind for one in sources))
                runs, intake = True, Intake() if run.reads_once else None
            with spark_session.jvm_may_be_gone():  # whoever waits for the query says so
                if run.query.isActive and not told.is_due:
                    return
                if intake is not None:
                    intake.look(run.query)
            told.tick(intake)

        self._observer.call(told.note, *console.KINDS)
        how = "failed"
        try:
            yield show
            how = "was stopped" if self._stop.is_set() else "is done"
        except KeyboardInterrupt:
            how = "was interrupted"
            raise
        finally:
            self._observer.call_no_more(told.note)
            if runs:
                told.end(how, intake)
        if runs and gateway.log() is not None:
            told.say(f"Spark's own log: {gateway.log()}")

    def _start(self, until: Until, tolerance: Tolerance) -> Run:
        if until not in get_args(Until):
            where = Where(job=self.name)
            raise BadConfig("bad_until", f"Unknown until={until!r}.", where=where, next="Use 'stopped' or 'available'.")
        if self._run is not None:
            if self._run.query.isActive:  # before anything is noted: the journal is the living query's
                where = Where(job=self.name)
                next_ = "Call job.stop() first."
                raise BadConfig("already_running", "The job is already running.", where=where, next=next_)
            with suppress(FencepostError):  # whoever waited for it has already got the error
                self._run.end()
        self._observer.dead = self._dead
        launch = self._launch(until=until, tolerance=tolerance)
        self._run = start_query(launch)
        if self._lineage is not None:
            self._lineage.name(_named(launch))
        gateway.make_archive_later()
        return self._run

    def on_complete(self, callback: Callback) -> Callback:
        """Call a function after every epoch, when its rows are visible and will stay: `@job.on_complete`.

        At least once: after a crash it is called again for the newest epoch (`event.again`). It runs between two
        epochs (with `overlap`, beside the next one's tasks), and the next one waits for it; if it raises, that is
        logged and changes nothing. Note: write what must be sent exactly once to a sink, do not send it from here.
        """
        self._observer.call(callback, Kind.COMPLETE)
        return callback

    def on_failure(self, callback: Callback) -> Callback:
        """Call a function when an epoch, the query or its start failed; the event has the error's text."""
        self._observer.call(callback, Kind.FAILED, Kind.TRIED_AGAIN, Kind.FENCED)
        return callback

    def on_restart(self, callback: Callback) -> Callback:
        """Call a function before the query is restarted in this process, and before the delay."""
        self._observer.call(callback, Kind.RESTARTED)
        return callback

    def metrics(self, port: int, *, host: str = "127.0.0.1") -> int:
        """Answer Prometheus at this port, until the process ends; 0 takes any that is free. Returns the port.

        The figures come from the checkpoint, so nothing is added to an epoch. Under `fencepost run` this does nothing,
        because a standby would want the same port: use its `--metrics`, which also answers while the driver is being
        restarted. Needs `fencepost[metrics]`.
        """
        if is_only_looked_at() or link.link() is not None:
            return port
        require("metrics_missing", "prometheus_client", extra="metrics", purpose="for job.metrics()")
        from fencepost.observe.metrics import Metrics, serve  # noqa: PLC0415 - of an extra

        return serve(Metrics(lambda: [(self.name, place(self.checkpoint))]), f"{host}:{port}")

    def trace(self, endpoint: str | None = None) -> None:
        """Send a trace of every epoch and every recovery to an OpenTelemetry collector, until the process ends.

        `endpoint` is its address for OTLP over HTTP (`http://host:4318`); without it the OTEL_ variables say, and by
        default it is on this machine. Call it before `run`. The spans come from the journal, so nothing is added to an
        epoch, and a collector that does not answer changes nothing. Under `fencepost run` this does nothing: use its
        `--otel`. Needs `fencepost[otel]`.
        """
        if is_only_looked_at() or link.link() is not None:
            return
        require("otel_missing", "opentelemetry.exporter.otlp.proto.http", extra="otel", purpose="for job.trace()")
        from fencepost.observe.traces import trace  # noqa: PLC0415 - of an extra

        os.environ[journal.TRACED] = "1"
        trace(lambda: [(self.name, place(self.checkpoint))], endpoint)

    def lineage(self, url: str | None = None, *, every: str = "10 s") -> None:
        """Tell an OpenLineage server what the job reads and writes, and how far it is, until the process ends.

        `url` is its address (`http://host:5000`); without it the OPENLINEAGE_ variables and openlineage.yml say. Call
        it once, before `run`, also under `fencepost run`. While epochs are committed an event is sent at most once in
        `every`. The events come from the journal, so nothing is added to an epoch, and a server that does not answer
        changes nothing. Needs `fencepost[lineage]`.
        """
        every_s = seconds(every)
        if every_s is None:
            raise BadConfig(
                "bad_lineage_every",
                f"Invalid every={every!r}: it must be a duration.",
                where=Where(job=self.name),
                safe=UNCHANGED,
                next="Write it as '10 s' or '2 minutes'.",
            )
        if is_only_looked_at() or self._lineage is not None:
            return
        require("lineage_missing", "openlineage.client", extra="lineage", purpose="for job.lineage()")
        from fencepost.observe.lineage_events import client_for, follow  # noqa: PLC0415 - of an extra

        self._lineage = follow(self.name, lambda: place(self.checkpoint), client_for(url, self.name), every_s)

    def stop(self) -> None:
        """Stop the query; an epoch that is being written is finished first, one whose tasks still run is dropped."""
        self._stop.set()
        if self._run is not None and self._observer.is_telling:
            self._run.ask("stop")
        elif self._run is not None:
            self._run.stop()

    def cancel(self) -> None:
        """Stop the query without waiting for data; an epoch whose tasks still run is dropped and reruns later.

        With `fp.Checkpoint(…, on_cancel="delete")` the checkpoint is then deleted, if nothing needs it any more.
        """
        self._stop.set()
        if self._run is not None and self._observer.is_telling:
            self._run.ask("cancel")
        elif self._run is not None:
            self._run.cancel(delete=self._config.checkpoint.deletes)

    def __enter__(self) -> Self:
        """`with fp.Job(…) as job:` stops the job at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop cleanly, or at once if the block failed."""
        self.cancel() if kind else self.stop()

    def __repr__(self) -> str:
        sinks = ", ".join(self._branches) or "nothing yet"
        return f"<fencepost.Job {self.name!r} {self._config.guarantee.word} → {sinks}>"

    def _repr_html_(self) -> str:
        """For notebooks: how it is doing, its newest epochs, the links and the guarantee they give."""
        rows = self.check().rows if self._branches else []
        head = "<tr><th>link</th><th>at best</th><th>why</th></tr>"
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<b>{html.escape(self.name)}</b>{self._strip()}<table>{head}{cells}</table>"

    def show(self) -> None:
        """In a notebook: what the job shows of itself, as of now; called again, what is on the page is replaced.

        Outside of a notebook it prints one line.
        """
        if self._shown is not None:
            self._shown.update(self)
            return
        with suppress(ImportError):  # only there in a notebook
            if import_module("IPython").get_ipython() is not None:
                self._shown = import_module("IPython.display").display(self, display_id=True)
                return
        print(f"{self.name}: {self._line()}")  # noqa: T201 - what was asked for

    def _line(self) -> str:
        found = self._look()
        return "not started yet, or its checkpoint cannot be read" if found is None else wording.line_of(found)

    def _look(self) -> Summary | None:
        try:
            with at_most(3.0):
                return JobArchive(place(self.checkpoint)).summary(recent=60)
        except (FencepostError, OSError):
            return None

    def _strip(self) -> str:
        """The newest epochs as bars, with a line of figures; nothing before the first start."""
        found = self._look()
        return (
            "" if found is None else f"<div>{html.escape(wording.line_of(found))}</div>{picture.svg_of(found.recent)}"
        )

    def _dead_letters(self, on_bad_record: str, dead: Any, frame: Any = None) -> Sink | None:
        """Check the arguments; return the dead-letter sink, if there is one."""
        where = Where(job=self.name)
        if on_bad_record not in ("fail", "dead_letter"):
            raise BadConfig(
                "bad_on_bad_record",
                f"Unknown on_bad_record={on_bad_record!r}.",
                where=where,
                next="Use 'fail' (fail the epoch) or 'dead_letter' (with dead_letters=…).",
            )
        if on_bad_record == "fail":
            if dead is not None:
                raise BadConfig(
                    "dead_letters_unused",
                    "dead_letters=… is set, but on_bad_record='fail' never uses it.",
                    where=where,
                    next="Set on_bad_record='dead_letter', or remove dead_letters=….",
                )
            return None
        if not isinstance(dead, Sink):
            raise BadConfig(
                "no_dead_letters",
                "on_bad_record='dead_letter' needs a sink for the dead letters.",
                where=where,
                next="Set one: dead_letters=fp.SQLite('dead.db', table='dead_letters').",
            )
        if dead.name in self._branches and (dead.name not in self._dead or self._branches[dead.name][1] != dead):
            raise self._taken(dead)
        if getattr(frame, "isStreaming", False) and plan.states_of(frame):
            raise BadConfig(
                "state_before",
                "The DataFrame has state (an aggregate, a join, keyed state), which Spark would keep twice: for the "
                "rows and for the dead letters.",
                where=where,
                next="Parse and map the records right after the source, and aggregate the result.",
            )
        return dead

    def _taken(self, dead: Sink) -> BadConfig:
        return BadConfig(
            "sink_twice",
            f"Another branch writes to a sink named {dead.name!r}.",
            where=Where(job=self.name),
            next="Give the dead letters their own target and name (name=…); several steps may share that sink.",
        )

    def _split(self, good: DataFrame, bad: DataFrame | None, dead: Sink | None) -> DataFrame:
        if bad is not None and dead is not None:
            if dead.name in self._dead:
                others = self._branches[dead.name][0]
                self._branches[dead.name] = (others.unionAll(bad) if others.isStreaming else bad, dead)
            else:
                self.write(bad, dead)
                self._dead |= {dead.name}
        return good


def _named(launch: Launch) -> Named:
    """What OpenLineage calls the sources and sinks; one that cannot say it goes by its own name."""
    inputs: dict[str, list[Dataset]] = {}
    for where, source in launch.placed.items():
        inputs[where] = [Dataset("fencepost", source.name or where)]
        with suppress(Exception):  # names are for people who look: no reason to fail
            inputs[where] = connectors.datasets(source)
    outputs: dict[str, Dataset] = {}
    for name, (_, sink) in launch.branches.items():
        outputs[name] = Dataset("fencepost", name)
        with suppress(Exception):
            outputs[name] = sink.dataset() or outputs[name]
    return inputs, outputs


def start(
    writer: DataStreamWriter,
    *,
    to: Sink,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    state: Backend | None = None,
    job: str | None = None,
    guarantee: str = "exactly_once",
    bridge: BridgeName | None = None,
    adopt: bool = False,
    allow_plan_changes: bool = False,
    replayable: bool = False,
) -> StreamingQuery:
    """Make an existing query exactly-once by changing one line; recover, start, return Spark's own StreamingQuery.

        df.writeStream.outputMode("update").foreachBatch(f).start()                        # before
        fp.start(df.writeStream.outputMode("update"), to=sink, checkpoint="ck/orders")     # after

    Note: leave `foreachBatch` and `format` off the writer. The sink is `to`. `replayable` is as in `Job.read`, and
    the others are as in `Job`.
    """
    frame = cast("Any", writer)._df
    kept = settled(checkpoint, state, job)
    kept.check_for_a_query_alone(job)
    name = job or Path(kept.place).name
    check_may_start(name)
    spark_session.check_session(frame.sparkSession, name)
    plan.check_frame(frame, name)
    plan.check_inlined(frame, name)
    mode = plan.check_writer(writer, name)
    if to.in_tasks(name) is not None:
        raise BadConfig(
            "parallel_needs_job",
            "fp.start() cannot use a sink that tasks write to: it changes the plan, and the writer's plan is fixed.",
            where=Where(job=name, sink=to.name),
            next="Use fp.Job(…).write(frame, sink), or let the driver write: no parallel=True, staging='checkpoint'.",
        )
    config = RunConfig(
        job=name,
        checkpoint=kept,
        guarantee=Guarantee.parse(guarantee, job=name),
        state=state,
        output_mode=mode,
        bridge=bridge,
        adopt=adopt,
        allow_plan_changes=allow_plan_changes,
    )
    if config.guarantee is Guarantee.EXACTLY_ONCE:
        fork.check_called_once(frame, name)
    link.when_told_to(name, kept.place, None, lambda called: None)
    vouched = tuple(plan.sources_of(frame)) if replayable else ()
    branches = {to.name: (frame, to)}
    run = start_query(Launch(config, frame.sparkSession, branches, Observer(name), vouched=vouched, given=writer))
    run.end_by_itself()
    return cast("StreamingQuery", run.query)
