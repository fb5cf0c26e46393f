"""What cannot work is refused before any data flows, in our own words: code, job, sink, what to do next."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streams import Place, dump, records, table

import fencepost as fp
from fencepost.connectors.files.source import FOREVER
from fencepost.errors import BadConfig, CheckpointRefused, GuaranteeTooHigh, Refused, TargetRefused
from fencepost.runtime.checks import look
from fencepost.spark import plan
from fencepost.spark.spark_session import check_session

pytestmark = [pytest.mark.spark]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder with one input file: if a refused job ran all the same, it would leave rows."""
    made = Place(tmp_path)
    made.say("a b")
    return made


def refused(
    kind: type[Refused], code: str, step: Callable[[], object], *, job: str | None = "job", sink: str | None = None
) -> str:
    """Take the step; return the text of its refusal, which has its four parts."""
    with pytest.raises(Refused) as caught:
        step()
    error = caught.value
    assert (kind, code, job, sink) == (type(error), error.code, error.where.job, error.where.sink)
    assert re.fullmatch(r"\[\w+\] .+\.(\n  where: .+)?\n  data:  .+\n  next:  .+", str(error), re.DOTALL)
    return str(error)


def nothing_began(place: Place) -> bool:
    return not place.checkpoint.exists() and not place.database.exists()


def lines(place: Place) -> fp.SQLite:
    return fp.SQLite(place.database, table="lines")


def words(spark: Any, place: Place) -> Any:
    read = spark.readStream.option("maxFileAge", FOREVER).text(str(place.input))
    return read.selectExpr("explode(split(value, ' ')) AS word")


def started(spark: Any, place: Place, prepare: Callable[[Any], Any], frame: Any = None) -> Callable[[], object]:
    """`fp.start` on a writer that was prepared in a way that cannot work."""
    writer = prepare((words(spark, place) if frame is None else frame).writeStream)
    return lambda: fp.start(writer, to=lines(place), checkpoint=place.checkpoint, job="job")


WRITERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("async_progress", lambda writer: writer.option("asyncProgressTrackingEnabled", "true")),
    ("async_progress", lambda writer: writer.option("ASYNCPROGRESSTRACKINGENABLED", "True")),
    ("refused_trigger", lambda writer: writer.trigger(realTime="5 minutes")),
    ("refused_trigger", lambda writer: writer.trigger(continuous="1 second")),
]


@pytest.mark.parametrize(("code", "prepare"), WRITERS)
def test_a_writer_that_breaks_one_epoch_at_a_time(
    spark: Any, place: Place, code: str, prepare: Callable[[Any], Any]
) -> None:
    refused(BadConfig, code, started(spark, place, prepare))
    assert nothing_began(place)


def test_a_source_that_may_skip_records(spark: Any, place: Place) -> None:
    reader = spark.readStream.format("rate").option("failOnDataLoss", "false")
    refused(BadConfig, "fail_on_data_loss", started(spark, place, lambda writer: writer, reader.load()))
    job = place.job(spark)
    refused(BadConfig, "fail_on_data_loss", lambda: job.write(reader.load(), lines(place)))
    assert nothing_began(place)


def test_complete_mode_needs_a_table_that_may_be_emptied(spark: Any, place: Place) -> None:
    complete = started(spark, place, lambda writer: writer.outputMode("complete"))
    assert "mode='replace'" in refused(BadConfig, "mode_does_not_fit", complete, sink="sqlite:lines")
    assert nothing_began(place)


def test_an_output_mode_that_spark_does_not_have(spark: Any, place: Place) -> None:
    assert "'update'" in refused(BadConfig, "output_mode", lambda: place.job(spark, output_mode="all"))


def test_spark_connect() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    refused(BadConfig, "spark_connect", lambda: check_session(session, "job"))


@pytest.mark.parametrize("version", ["3.5.1", "4.4.0", "4.20.0", "5.0.0"])
def test_a_spark_that_nobody_tried(version: str) -> None:
    assert version in refused(
        BadConfig, "unsupported_spark", lambda: check_session(SimpleNamespace(version=version), "job")
    )


def test_a_setting_that_breaks_python_stages() -> None:
    session = SimpleNamespace(version="4.3.0", conf={"spark.python.udf.pipelined.enabled": "true"})
    refused(BadConfig, "pipelined_udf", lambda: check_session(session, "job"))


@pytest.mark.parametrize("guarantee", ["exactly-once", "EXACTLY_ONCE", "", 2])
def test_an_unknown_guarantee(spark: Any, place: Place, guarantee: Any) -> None:
    refused(BadConfig, "unknown_guarantee", lambda: place.job(spark, guarantee=guarantee))
    assert nothing_began(place)


def test_an_unknown_bridge(spark: Any, place: Place) -> None:
    refused(BadConfig, "unknown_bridge", lambda: place.counting(spark, "bridge").start())
    assert nothing_began(place)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_socket_cannot_be_read_again(spark: Any, place: Place, guarantee: str) -> None:
    job = place.job(spark, guarantee=guarantee)
    job.write(job.read(fp.Socket("localhost", 1)), lines(place))
    text = refused(GuaranteeTooHigh, "guarantee_too_high", job.start)
    for part in (guarantee, "source socket", "cannot be read again", "Kafka or files", "guarantee='at_most_once'"):
        assert part in text
    assert nothing_began(place)


def own_source(spark: Any, called: str = "own", **options: str) -> Any:
    """A stream of a Python data source, as a user may write one."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader  # noqa: PLC0415 - needs pyspark

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 0}

        def read(self, start: dict[str, int]) -> Any:
            return iter([("new",)] if start["at"] < 1 else []), {"at": 1}

        def readBetweenOffsets(self, start: Any, end: Any) -> Any:  # noqa: N802 - Spark's name
            return iter([])  # nothing is there a second time

    class Own(DataSource):
        @classmethod
        def name(cls) -> str:
            return called

        def schema(self) -> str:
            return "value STRING"

        def simpleStreamReader(self, schema: Any) -> Reader:  # noqa: N802 - Spark's name
            return Reader()

    spark.dataSource.register(Own)
    return spark.readStream.format(called).options(**options).load()


@pytest.mark.parametrize("called", ["rates_feed", "kafka_http", "websocket"])
def test_a_source_is_not_known_by_a_part_of_its_name(spark: Any, place: Place, called: str) -> None:
    stream = own_source(spark, called)
    job = place.job(spark)
    job.write(job.read(stream), lines(place))
    text = refused(GuaranteeTooHigh, "guarantee_too_high", job.start)
    assert ("does not know" in text, "replayable=True" in text) == (True, True)
    job = place.job(spark)
    job.write(job.read(stream, replayable=True), lines(place))
    assert "your word" in str(job.check().rows)
    assert job.check().holds


def test_a_class_of_sparks_is_the_source_that_it_is(spark: Any, place: Place) -> None:
    provider = "org.apache.spark.sql.execution.streaming.sources.RateStreamProvider"
    kinds = [plan.sources_of(spark.readStream.format(each).load())[0].kind for each in (provider, "RATE", "rate")]
    assert ["rate"] * 3 == kinds


def test_the_users_word_for_one_source_is_not_for_another_of_its_kind(spark: Any, place: Place) -> None:
    job = place.job(spark)
    mine = job.read(own_source(spark, "feed", url="a"), replayable=True)
    other = job.read(own_source(spark, "feed", url="b"))
    job.write(mine.unionAll(other), lines(place))
    refused(GuaranteeTooHigh, "guarantee_too_high", job.start)
    job = place.job(spark)
    both = [job.read(own_source(spark, "feed", url=url), replayable=True) for url in "ab"]
    assert job.write(both[0].unionAll(both[1]), lines(place)).check().holds


@pytest.mark.parametrize("setting", plan.UNCHECKED)
def test_a_setting_with_which_spark_runs_plans_that_it_knows_to_be_wrong(
    spark: Any, place: Place, setting: str
) -> None:
    spark.conf.set(setting, "false")
    try:
        job = place.counting(spark)
        text = refused(GuaranteeTooHigh, "guarantee_too_high", job.start)
        assert (setting in text, "remove" in text.lower()) == (True, True)
        assert "at_most_once" == look(job._launch(looks=True)).report.rows[-1][1]
        assert nothing_began(place)
        place.counting(spark, guarantee="at_most_once").run(until="available")
    finally:
        spark.conf.unset(setting)
    assert {"a": 1, "b": 1} == place.counts()


def test_a_source_that_nobody_knows_needs_the_users_word(spark: Any, place: Place) -> None:
    stream, sink = own_source(spark), fp.SQLite(place.database, table="rows")
    job = place.job(spark)
    job.write(job.read(stream), sink)
    text = refused(GuaranteeTooHigh, "guarantee_too_high", job.start)
    assert "source own" in text
    assert "replayable=True" in text
    assert nothing_began(place)
    told = place.job(spark)
    told.write(told.read(stream, replayable=True), sink)
    assert [("source own", "exactly_once", "a range of offsets can be read again (your word: replayable=True)")] == [
        row for row in told.check().rows if row[0] == "source own"
    ]


def test_a_function_that_is_not_declared_idempotent(spark: Any, place: Place) -> None:
    job = place.job(spark)
    job.write(place.text(job), fp.WriteAheadLog(lambda context, batches: None, name="api"))
    text = refused(GuaranteeTooHigh, "guarantee_too_high", job.start)
    for part in ("sink api", "at_least_once at best", "sent again", "idempotent=True"):
        assert part in text
    assert nothing_began(place)


def test_an_aggregate_in_update_mode_needs_a_key(spark: Any, place: Place) -> None:
    job = place.job(spark)
    job.write(words(spark, place).groupBy("word").count(), lines(place))
    refused(BadConfig, "mode_does_not_fit", job.start, sink="sqlite:lines")
    assert nothing_began(place)


def test_a_batch_is_not_a_stream(spark: Any, place: Place) -> None:
    refused(BadConfig, "not_a_stream", lambda: place.job(spark).write(spark.range(1), lines(place)))
    assert nothing_began(place)


@pytest.mark.parametrize("columns", [("value", "value"), ("value", "value AS VALUE")])
def test_two_columns_of_one_name(spark: Any, place: Place, columns: tuple[str, ...]) -> None:
    job = place.job(spark)
    frame = place.text(job).selectExpr(*columns)
    refused(BadConfig, "duplicate_columns", lambda: job.write(frame, lines(place)))


def test_two_branches_into_one_sink(spark: Any, place: Place) -> None:
    job = place.job(spark)
    job.write(place.text(job), lines(place))
    assert "'sqlite:lines'" in refused(BadConfig, "sink_twice", lambda: job.write(place.text(job), lines(place)))


def test_two_sinks_that_would_erase_each_others_rows(spark: Any, place: Place) -> None:
    """The database exists already; nothing was written to it but the empty table."""
    (place.root / "link").symlink_to(place.root)
    job = place.job(spark, output_mode="complete")
    counts = words(spark, place).groupBy("word").count()
    for name, path in (("one", place.database), ("two", place.root / "link" / place.database.name)):
        job.write(counts, fp.SQLite(path, table="counts", mode="replace", name=name))
    assert "'one' and 'two'" in refused(BadConfig, "target_twice", job.start)
    assert ["target_twice"] == [problem.code for problem in look(job._launch(looks=True)).problems]
    assert [] == table(place.database, "counts")


def test_a_job_that_writes_nothing(spark: Any, place: Place) -> None:
    refused(BadConfig, "nothing_to_write", place.job(spark).run)
    refused(BadConfig, "nothing_to_write", place.job(spark).start)


def test_a_job_without_a_name(spark: Any, place: Place) -> None:
    refused(BadConfig, "bad_job_name", lambda: place.job(spark, name=" "), job=None)


def test_an_unknown_end(spark: Any, place: Place) -> None:
    refused(BadConfig, "bad_until", lambda: place.counting(spark).run(until="done"))
    assert nothing_began(place)


@pytest.mark.parametrize(
    ("code", "source"),
    [
        ("no_schema", fp.Files("in", format="json")),
        ("unknown_format", fp.Files("in", format="orc", schema="a INT")),
        ("bad_rate", None),
    ],
)
def test_a_source_that_cannot_work(spark: Any, place: Place, code: str, source: Any) -> None:
    if source is None:
        refused(BadConfig, code, lambda: fp.Rate(rows_per_second=0), job=None)
    else:
        refused(BadConfig, code, lambda: place.job(spark).read(source))


@pytest.mark.parametrize("thing", ["in", None, 1])
def test_a_thing_that_is_no_source_or_no_sink(spark: Any, place: Place, thing: Any) -> None:
    job = place.job(spark)
    refused(BadConfig, "not_a_source", lambda: job.read(thing))
    refused(BadConfig, "not_a_sink", lambda: job.write(place.text(job), thing))
    refused(BadConfig, "not_a_stream", lambda: job.write(thing, lines(place)))


@pytest.mark.parametrize("path", ["gs://bucket/ck", "abfs://host/ck", "S3://bucket/ck"])
def test_a_checkpoint_on_a_store_that_nobody_tried(spark: Any, path: str) -> None:
    refused(BadConfig, "unknown_store", lambda: fp.Job("job", checkpoint=path, spark=spark))


def test_columns_that_no_longer_fit_the_target(spark: Any, place: Place) -> None:
    place.counting(spark).run(until="available")
    before = dump(place.database), records(place.checkpoint)
    place.say("c")
    job = place.job(spark)
    counts = words(spark, place).groupBy("word").count().withColumnRenamed("count", "n")
    job.write(counts, place.counts_sink())
    text = refused(TargetRefused, "schema_does_not_fit", job.start, sink="sqlite:counts")
    assert "'n' is missing" in text
    assert before == (dump(place.database), records(place.checkpoint))


def replace_by_nothing(place: Place) -> None:
    for file in place.root.glob("out.db*"):
        file.unlink()


def replace_by_an_empty_one(place: Place) -> None:
    replace_by_nothing(place)
    place.database.touch()


def replace_by_another(place: Place) -> None:
    replace_by_nothing(place)
    with closing(sqlite3.connect(place.database)) as connection:
        connection.execute("CREATE TABLE counts (word TEXT NOT NULL PRIMARY KEY, count INTEGER)")


@pytest.mark.parametrize("replace", [replace_by_nothing, replace_by_an_empty_one, replace_by_another])
def test_a_target_that_was_replaced(spark: Any, place: Place, replace: Callable[[Place], None]) -> None:
    place.counting(spark).run(until="available")
    before = records(place.checkpoint)
    replace(place)
    for _ in range(2):  # the first refusal must not make the second start look right
        refused(CheckpointRefused, "target_replaced", place.counting(spark).start, sink="sqlite:counts")
    assert before == records(place.checkpoint)


def test_another_jobs_checkpoint(spark: Any, place: Place) -> None:
    place.counting(spark).run(until="available")
    before = dump(place.database), records(place.checkpoint)
    refused(CheckpointRefused, "another_job", place.counting(spark, name="other").start, job="other")
    assert before == (dump(place.database), records(place.checkpoint))


def test_a_target_that_belongs_to_another_checkpoint(spark: Any, place: Place) -> None:
    place.counting(spark).run(until="available")
    before = dump(place.database)
    again = place.counting(spark, checkpoint=place.root / "new")
    refused(TargetRefused, "target_of_another_lineage", again.start, sink="sqlite:counts")
    assert before == dump(place.database)


@pytest.mark.parametrize("level", ["at_least_once", "at_most_once"])
def test_another_guarantee_than_at_the_first_start(spark: Any, place: Place, level: str) -> None:
    place.counting(spark).run(until="available")
    before = dump(place.database), records(place.checkpoint)
    text = refused(CheckpointRefused, "guarantee_changed", place.counting(spark, guarantee=level).start)
    assert "guarantee='exactly_once'" in text
    assert before == (dump(place.database), records(place.checkpoint))


def test_a_sink_that_was_added_or_removed(spark: Any, place: Place) -> None:
    place.counting(spark).run(until="available")
    more = place.counting(spark)
    more.write(place.text(more), lines(place))
    refused(CheckpointRefused, "sources_changed", more.start)  # one more use of a source without a name
    other = place.job(spark)
    other.write(place.text(other), lines(place))
    refused(CheckpointRefused, "operator_changed", other.start, sink="sqlite:counts")  # its state would have no owner


def test_plain_sparks_checkpoint_is_not_taken_over_unasked(spark: Any, place: Place) -> None:
    writer = words(spark, place).writeStream.format("noop").trigger(availableNow=True)
    assert writer.start(checkpointLocation=str(place.checkpoint)).awaitTermination(60)
    job = place.job(spark)
    job.write(words(spark, place), lines(place))
    assert "adopt=True" in refused(CheckpointRefused, "ledger_missing", job.start)


def test_a_plan_that_changed_its_state_is_sparks_error_in_our_words(spark: Any, place: Place) -> None:
    place.counting(spark).run(until="available")
    before = dump(place.database)
    place.say("c")
    job = place.job(spark, allow_plan_changes=True)
    counts = place.text(job).selectExpr("length(value) AS word").groupBy("word").count()
    job.write(counts.selectExpr("cast(word AS string) AS word", "count"), place.counts_sink())
    with pytest.raises(CheckpointRefused) as failed:
        job.run(until="available")
    assert ("state_schema", "job") == (failed.value.code, failed.value.where.job)
    assert before == dump(place.database)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are only ours."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o777)
        yield Path(made)


CHILD = """
import os, sys, tempfile
from pathlib import Path
from fencepost.errors import FencepostError
from killing import Scene

scene = Scene(Path(sys.argv[1]), ("sqlite",))
with tempfile.TemporaryDirectory() as warm:  # import everything while this user may still read it
    Scene(Path(warm), ("sqlite",)).job().run()
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
if sys.argv[2] == "again":
    scene.job().run()
    assert scene.is_exact()
    (scene.folder / "checkpoint").chmod(0o555)
    for folder in (scene.folder / "checkpoint").rglob("*"):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
try:
    scene.job().run()
except FencepostError as error:
    print(type(error).__name__, error.code, error.where.job, error.where.sink, "writ" in error.next)
"""


@pytest.mark.parametrize(
    ("read_only", "again", "said"),
    [
        (".", "first", "TargetRefused target_unusable stand-in sqlite:sums True"),
        ("checkpoint", "first", "RecoveryNeeded checkpoint_unusable stand-in None True"),
        (None, "again", "RecoveryNeeded checkpoint_unusable stand-in None True"),
    ],
)
def test_a_folder_that_may_not_be_written(open_to_all: Path, read_only: str | None, again: str, said: str) -> None:
    if read_only is not None:
        (open_to_all / read_only).mkdir(exist_ok=True)
        (open_to_all / read_only).chmod(0o555)
    command = [sys.executable, "-c", CHILD, str(open_to_all), again]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "helpers")}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (0, said, "") == (child.returncode, child.stdout.strip(), child.stderr)


@pytest.mark.parametrize(
    "expression", ["parse_json('1')", "array(INTERVAL '1' YEAR)", "named_struct('v', parse_json('1'))"]
)
def test_a_column_that_no_sink_can_be_given_is_refused_with_its_name(spark: Any, place: Place, expression: str) -> None:
    job = place.job(spark)
    job.write(words(spark, place).selectExpr("word AS variant", f"{expression} AS odd"), lines(place))
    text = refused(BadConfig, "unsupported_type", job.start, sink="sqlite:lines")
    assert "'odd'" in text
    assert nothing_began(place)
