"""Branches of one job agree about every record: what they have in common is computed once, or is the same each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from streams import Place, drop, table

import fencepost as fp
from fencepost.spark import fork, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.since(4, 1)]

MANY = 400


@pytest.fixture
def lines(spark: SparkSession, place: Place) -> Callable[[fp.Job], DataFrame]:
    """Numbers, in two files of one epoch."""
    for part in (range(MANY // 2), range(MANY // 2, MANY)):
        drop(place.input, "".join(f"{number}\n" for number in part))
    return lambda job: job.read(fp.Files(str(place.input), format="text"))


def draw() -> Any:
    """A Python function that gives another result each time."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    def chance(_: str) -> float:
        import random  # noqa: PLC0415 - in the worker

        return random.random()

    return F.udf(chance, "double", useArrow=False)


def of_a_view(lines: DataFrame) -> DataFrame:
    """The text of a view is analyzed at each use, so each use has a seed of its own."""
    spark = lines.sparkSession
    lines.createOrReplaceTempView("lines")
    spark.sql("CREATE OR REPLACE TEMP VIEW scored AS SELECT value, rand() AS r FROM lines")
    return spark.table("scored")


def joined(lines: DataFrame, *, through_rdd: bool = False) -> DataFrame:
    """A table that anybody may write to while the job runs."""
    rates = lines.sparkSession.read.json(os.environ["FENCEPOST_TEST_RATES"])
    return lines.join(rates.rdd.toDF() if through_rdd else rates, lines.value % 2 == 0, "left")


def of_a_sketch(lines: DataFrame) -> DataFrame:
    """Its bins depend on the order in which the rows come."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    return lines.groupBy("value").agg(F.expr("histogram_numeric(length(value), 2)[0].y AS r"))


def split(job: fp.Job, base: DataFrame, place: Place, **key: str) -> fp.Job:
    """Two branches: each record is in one of them."""
    job.write(base.where("r < 0.5").select("value"), fp.SQLite(place.database, table="low", **key))
    return job.write(base.where("NOT r < 0.5").select("value"), fp.SQLite(place.database, table="high", **key))


VARYING: dict[str, Callable[[Any], Any]] = {
    "rand": lambda lines: lines.selectExpr("value", "rand() AS r"),
    "rand with a seed": lambda lines: lines.selectExpr("value", "rand(7) AS r"),
    "uuid": lambda lines: lines.selectExpr("value", "conv(left(uuid(), 4), 16, 10) / 65536 AS r"),
    "a Python function": lambda lines: lines.withColumn("r", draw()("value")),
    "a file": lambda lines: lines.repartition(3).selectExpr("value", "length(input_file_name()) AS r"),
    "a partition": lambda lines: lines.repartition(3).selectExpr("value", "spark_partition_id() AS r"),
    "the first": lambda lines: lines.groupBy("value").agg({"value": "first"}).selectExpr("value", "1 AS r"),
    "a sketch": of_a_sketch,
    "duplicates": lambda lines: lines.selectExpr("value", "length(value) AS r").dropDuplicates(["r"]),
    "a view": of_a_view,
    "a static table": joined,
    "an RDD": lambda lines: joined(lines, through_rdd=True),
    "fp.rand": lambda lines: lines.withColumn("r", fp.rand()),
}


@pytest.mark.parametrize("kind", VARYING)
def test_branches_that_could_disagree_are_refused(
    kind: str, lines: Any, spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "rates.json").write_text(json.dumps({"r": 0.1}))
    monkeypatch.setenv("FENCEPOST_TEST_RATES", str(place.root / "rates.json"))
    job = place.job(spark)
    key = {"key": "value"} if kind in ("the first", "a sketch") else {}
    with pytest.raises(fp.Refused) as refused:
        split(job, VARYING[kind](lines(job)), place, **key).run(until="available")
    assert "computed_twice" == refused.value.code
    assert ("second job" if kind in ("the first", "a sketch", "duplicates") else "job.share") in refused.value.next
    assert not place.checkpoint.exists()


def filtered(lines: Any, kind: str) -> Any:
    """Rows whose r must be below a half, whoever computes it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    drawn = lines.withColumn("r", draw()("value"))
    if kind == "a view":
        drawn.createOrReplaceTempView("drawn")
        return lines.sparkSession.sql("SELECT * FROM (SELECT value, r FROM drawn) WHERE r < 0.5 AND value >= 0")
    if kind == "two functions":
        return drawn.select("value", draw()("r").alias("r")).where("r < 0.5")
    if kind == "a dropped column":
        return drawn.withColumn("other", draw()("value")).where("r < 0.5").drop("other")
    if kind == "state":
        low = drawn.where("r < 0.5").groupBy(F.expr("value % 7 AS value"))
        return low.agg(F.max("r").alias("r"))
    return drawn.where("r < 0.5")


@pytest.mark.parametrize("kind", ["a column", "a view", "two functions", "a dropped column", "state"])
def test_a_filter_sees_what_the_sink_gets_of_a_function(
    kind: str, lines: Any, spark: SparkSession, place: Place
) -> None:
    """Spark would call it once for the filter and again for the column."""
    job = place.job(spark)
    rows = lines(job)
    key = {"key": "value"} if kind == "state" else {}
    job.write(filtered(rows, kind), fp.SQLite(place.database, table="low", **key))
    job.write(rows, fp.SQLite(place.database, table="all"))
    job.run(until="available")
    low = [row[1] for row in table(place.database, "low")]
    assert (MANY, 0) == (len(table(place.database, "all")), sum(r >= 0.5 for r in low))
    assert 7 == len(low) if kind == "state" else 0 < len(low) < MANY


def test_a_trusted_function_is_called_as_often_as_spark_likes(lines: Any, spark: SparkSession, place: Place) -> None:
    """The twin that must be caught, and what deterministic_udfs=True is a word for."""
    job = place.job(spark, deterministic_udfs=True)
    job.write(filtered(lines(job), "a column"), fp.SQLite(place.database, table="low")).run(until="available")
    assert any(row[1] >= 0.5 for row in table(place.database, "low"))


def test_a_writer_in_which_spark_calls_twice_is_refused_with_the_cure(
    lines: Any, spark: SparkSession, place: Place
) -> None:
    rows = lines(place.job(spark))

    def start(function: Any) -> Any:
        frame = rows.withColumn("r", function("value")).where("r < 0.5")
        writer = frame.writeStream.trigger(availableNow=True)
        return fp.start(writer, to=fp.SQLite(place.database, table="low"), checkpoint=place.checkpoint)

    with pytest.raises(fp.Refused, match="asNondeterministic") as refused:
        start(draw())
    assert "function_in_writer" == refused.value.code
    assert not place.checkpoint.exists()
    start(draw().asNondeterministic()).awaitTermination()
    low = [row[1] for row in table(place.database, "low")]
    assert (True, True) == (0 < len(low) < MANY, all(r < 0.5 for r in low))


def test_a_plan_in_which_spark_calls_once_stays_as_it_is(lines: Any, spark: SparkSession, place: Place) -> None:
    """So that Spark still moves filters on other columns below the call."""
    rows = lines(place.job(spark))
    drawn = rows.withColumn("r", draw()("value"))
    both = rows.unionAll(rows).withColumn("r", draw()("value"))  # Spark calls it below the union, on either side
    for frame in (drawn, drawn.where("value > 7"), drawn.groupBy("value").count(), both):
        assert fork.called_once(frame, "job") is frame
    again = fork.called_once(drawn.where("r < 0.5"), "job")
    assert (["value", "r"], True) == (again.columns, fork.called_once(again, "job") is again)


def test_a_grouping_by_a_function_that_a_filter_reads_is_refused_with_the_cure(
    lines: Any, spark: SparkSession, place: Place
) -> None:
    rows, function = lines(place.job(spark)), draw()
    with pytest.raises(fp.Refused, match="Compute it in a column first") as refused:
        fork.called_once(rows.groupBy(function("value").alias("k")).count().where("k < 0.5"), "job")
    assert "function_called_twice" == refused.value.code
    cured = rows.withColumn("k", function("value")).groupBy("k").count().where("k < 0.5")
    assert not fork.is_called_twice(fork.called_once(cured, "job"))


def complements(lines: Any) -> dict[str, tuple[Any, Any]]:
    """Two branches without a common DataFrame above the source, as one writes them who splits a stream."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    drawn, low = draw(), F.rand() < 0.5
    rates = lines.sparkSession.read.json(os.environ["FENCEPOST_TEST_RATES"]).selectExpr("CAST(r AS STRING) AS value")
    lines.createOrReplaceTempView("lines")
    rates.createOrReplaceTempView("rates")
    sql = lines.sparkSession.sql
    sql("CREATE OR REPLACE TEMP VIEW scored AS SELECT value, rand() AS r FROM lines")
    return {
        "one function": (lines.where(drawn("value") < 0.5), lines.where(drawn("value") >= 0.5)),
        "one column": (lines.where(low), lines.where(~low)),
        "two joins": (lines.join(rates, "value", "left_semi"), lines.join(rates, "value", "left_anti")),
        "two views": (sql("SELECT value FROM scored WHERE r < 0.5"), sql("SELECT value FROM scored WHERE r >= 0.5")),
        "a subquery": (
            sql("SELECT * FROM lines WHERE value IN (SELECT value FROM rates)"),
            sql("SELECT * FROM lines WHERE value NOT IN (SELECT value FROM rates)"),
        ),
    }


@pytest.mark.parametrize("kind", ["one function", "one column", "two joins", "two views", "a subquery"])
def test_so_are_branches_that_each_say_it_for_themselves(
    kind: str, lines: Any, spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "rates.json").write_text(json.dumps({"r": "1"}))
    monkeypatch.setenv("FENCEPOST_TEST_RATES", str(place.root / "rates.json"))
    job = place.job(spark)
    one, other = complements(lines(job))[kind]
    job.write(one, fp.SQLite(place.database, table="one")).write(other, fp.SQLite(place.database, table="other"))
    with pytest.raises(fp.Refused) as refused:
        job.run(until="available")
    assert "computed_twice" == refused.value.code


def rates(lines: Any, folder: Path) -> Any:
    """A changing table that is read at each call, by two columns."""
    folder.mkdir(exist_ok=True)
    (folder / "rates.json").write_text('{"value": "1", "kind": "x"}\n{"value": "2", "kind": "y"}\n')
    return lines.sparkSession.read.json(str(folder))


def declared(*, deterministic: bool) -> Any:
    """A Python table function; unlike `F.udf`, it is nondeterministic unless the user says otherwise."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    class Halves:
        def eval(self, value: str) -> Any:
            yield (len(value) / 2,)

    made = F.udtf(Halves, returnType="r DOUBLE", useArrow=False)
    return made.asDeterministic() if deterministic else made


def halved(lines: Any) -> Any:
    lines.createOrReplaceTempView("lines")
    lines.sparkSession.udtf.register("halves", declared(deterministic=True))
    return lines.sparkSession.sql("SELECT value, r FROM lines, LATERAL halves(value)")


def parts(lines: Any, folder: Path) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Two parts of a stream that share something that varies, though nothing in their plans is the same."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    drawn, moved = draw(), lines.repartition(3)
    longer = lines.selectExpr("value", "length(value) AS n", "int(value) % 2 AS odd")
    table = rates(lines, folder)
    return {
        "two filters of a table": lambda: (
            lines.join(table.where("kind = 'x'"), "value"),
            lines.join(table.where("kind <> 'x'"), "value"),
        ),
        "a table and a column of it": lambda: (
            lines.join(table.select("value"), "value", "left_semi"),
            lines.join(table, "value", "left_anti"),
        ),
        "a table that is read twice": lambda: (
            lines.join(rates(lines, folder), "value", "left_semi"),
            lines.join(rates(lines, folder).where("kind = 'x'"), "value", "left_anti"),
        ),
        "a function of a column that was renamed": lambda: (
            lines.where(drawn("value") < 0.5),
            lines.selectExpr("value AS text").where(drawn("text") >= 0.5).toDF("value"),
        ),
        "a function of a column that was computed": lambda: (
            longer.where(drawn(F.col("n").cast("string")) < 0.5).select("value"),
            lines.where(drawn(F.length("value").cast("string")) >= 0.5),
        ),
        "one source of two": lambda: (
            lines.unionAll(lines.selectExpr("concat(value, 'x') AS value")).where(drawn("value") < 0.5),
            lines.where(drawn("value") >= 0.5),
        ),
        "the number of a partition": lambda: (
            moved.where("spark_partition_id() = 0"),
            moved.selectExpr("value", "length(value) AS n").where("spark_partition_id() <> 0").select("value"),
        ),
        "duplicates with other columns": lambda: (
            longer.select("n", "value").dropDuplicates(["n"]).select("value"),
            longer.select("n", "value", "odd").dropDuplicates(["n"]).selectExpr("string(odd) AS value"),
        ),
        "a table function": lambda: (
            halved(lines).where("r < 1").select("value"),
            halved(lines).where("r >= 1").select("value"),
        ),
    }


PARTS = (
    "two filters of a table",
    "a table and a column of it",
    "a table that is read twice",
    "a function of a column that was renamed",
    "a function of a column that was computed",
    "one source of two",
    "the number of a partition",
    "duplicates with other columns",
    "a table function",
)


@pytest.mark.parametrize("united", [False, True], ids=["two branches", "one branch"])
@pytest.mark.parametrize("kind", PARTS)
def test_parts_that_could_disagree_are_refused_between_branches_and_in_one(
    kind: str, united: bool, lines: Any, spark: SparkSession, place: Place
) -> None:
    job = place.job(spark)
    one, other = (frame.select("value") for frame in parts(lines(job), place.root / "rates")[kind]())
    if united:
        job.write(one.unionAll(other), fp.SQLite(place.database, table="all"))
    else:
        job.write(one, fp.SQLite(place.database, table="one")).write(other, fp.SQLite(place.database, table="other"))
    with pytest.raises(fp.Refused) as refused:
        job.run(until="available")
    assert "computed_twice" == refused.value.code
    assert ("or not at all" if united else "or in neither") in str(refused.value)


def test_aggregates_that_each_choose_a_row_are_refused_whatever_else_they_compute(
    lines: Any, spark: SparkSession, place: Place
) -> None:
    job = place.job(spark)
    rows = lines(job).selectExpr("value", "length(value) AS n", "int(value) % 2 AS odd")
    one = rows.groupBy("n").agg({"value": "first"}).toDF("n", "v")
    other = rows.groupBy("n").agg({"odd": "first", "value": "max"}).toDF("n", "o", "v")
    job.write(one, fp.SQLite(place.database, table="one", key="n"))
    job.write(other, fp.SQLite(place.database, table="other", key="n"))
    with pytest.raises(fp.Refused, match=r"computed_twice.*first\(\)"):
        job.run(until="available")


@pytest.mark.parametrize("kind", ["one function", "one column", "two joins", "two views", "a subquery"])
def test_so_is_a_branch_of_which_two_parts_say_it_for_themselves(
    kind: str, lines: Any, spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "rates.json").write_text(json.dumps({"r": "1"}))
    monkeypatch.setenv("FENCEPOST_TEST_RATES", str(place.root / "rates.json"))
    job = place.job(spark)
    one, other = complements(lines(job))[kind]
    job.write(one.unionAll(other), fp.SQLite(place.database, table="all"))
    with pytest.raises(fp.Refused, match="computed_twice"):
        job.run(until="available")


def test_one_way_through_a_plan_may_look_up_draw_and_call_as_often_as_it_likes(
    lines: Any, spark: SparkSession, place: Place
) -> None:
    """Twice the same table, function and draw, one above the other; and parts of two sources."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    job = place.job(spark)
    stream, table, drawn = lines(job), rates(lines(job), place.root / "rates"), draw()
    twice = (
        stream.join(table, "value", "left")
        .join(table.selectExpr("value AS other"), F.col("value") == F.col("other"), "left")
        .withColumn("one", drawn("value"))
        .withColumn("two", drawn("value"))
        .selectExpr("value", "uuid() AS a", "uuid() AS b", "one + two > 0 AND one + one > 0 AS c")
    )
    apart = lines(job).where(drawn("value") < 2).unionAll(spark.readStream.text(str(place.input)).where(F.rand() < 2))
    fork.check({"twice": twice}, "job", trusts_udfs=False)
    fork.check({"apart": apart}, "job", trusts_udfs=False)
    unmoved = stream.where("spark_partition_id() >= 0"), stream.where("spark_partition_id() < 0")
    fork.check(dict(zip("ab", unmoved, strict=True)), "job", trusts_udfs=False)
    others = stream.groupBy("value").agg(F.first("value")), stream.groupBy(F.length("value")).agg(F.last("value"))
    fork.check(dict(zip("ab", others, strict=True)), "job", trusts_udfs=False)


def test_a_trusted_function_that_is_declared_nondeterministic_is_refused(
    lines: Any, spark: SparkSession, place: Place
) -> None:
    job, drawn = place.job(spark), draw()
    stream = lines(job)
    frames = {"a": stream.where(drawn("value") < 0.5), "b": stream.where(drawn("value") >= 0.5)}
    fork.check(frames, "job", trusts_udfs=True)
    drawn = drawn.asNondeterministic()
    frames = {"a": stream.where(drawn("value") < 0.5), "b": stream.where(drawn("value") >= 0.5)}
    with pytest.raises(fp.Refused, match="declared nondeterministic"):
        fork.check(frames, "job", trusts_udfs=True)


def test_a_branch_that_uses_a_varying_value_twice_by_itself_is_refused(
    lines: Any, spark: SparkSession, place: Place
) -> None:
    job = place.job(spark)
    base = lines(job).selectExpr("value", "rand() AS r")
    job.write(base.where("r < 0.5").unionAll(base.where("r >= 0.5")), fp.SQLite(place.database, table="all"))
    with pytest.raises(fp.Refused) as refused:
        job.run(until="available")
    assert "computed_twice" == refused.value.code


SHARED: dict[str, Callable[[Any], Any]] = {
    "fp.rand": VARYING["fp.rand"],
    "fp.uuid": lambda lines: lines.withColumn("u", fp.uuid()).selectExpr(
        "value", "conv(left(u, 4), 16, 10) / 65536 AS r"
    ),
    "a Python function": VARYING["a Python function"],
}


@pytest.mark.parametrize("bridge", ["jvm", "foreach_batch"])
@pytest.mark.parametrize("kind", SHARED)
def test_shared_rows_are_the_same_in_every_branch_and_in_the_state(
    kind: str, bridge: str, lines: Any, spark: SparkSession, place: Place
) -> None:
    job = place.job(spark, bridge)
    base = job.share(SHARED[kind](lines(job)))
    split(job, base, place)
    total = base.where("r < 0.5").selectExpr("1 AS one").groupBy("one").count()
    job.write(total, fp.SQLite(place.database, table="total", key="one"))
    job.run(until="available")
    low, high = ([value for (value,) in table(place.database, name)] for name in ("low", "high"))
    assert sorted(map(str, range(MANY))) == sorted(low + high)
    assert 0 < len(low) < MANY
    assert [(1, len(low))] == table(place.database, "total")


def test_the_proof_finds_shared_rows_that_are_computed_twice(lines: Any, spark: SparkSession, place: Place) -> None:
    """The twin that must be caught: without reuse of shuffles each branch computes for itself."""
    job = place.job(spark)
    split(job, job.share(lines(job).withColumn("r", fp.rand())), place)
    spark.conf.set("spark.sql.exchange.reuse", "false")
    try:
        with pytest.raises(fp.Refused) as refused:
            job.run(until="available")
    finally:
        spark.conf.set("spark.sql.exchange.reuse", "true")
    assert "called_twice" == refused.value.code
    assert "not decided" in refused.value.safe


def test_what_cannot_be_shared_is_refused_at_once(lines: Any, spark: SparkSession, place: Place) -> None:
    job = place.job(spark)
    stream = lines(job)
    refused_for = {
        "shared_seed": stream.selectExpr("value", "rand() AS r"),
        "shared_state": stream.groupBy("value").count(),
        "not_a_stream": spark.range(3),
    }
    for code, frame in refused_for.items():
        with pytest.raises(fp.Refused) as refused:
            job.share(frame)
        assert code == refused.value.code


def test_what_is_the_same_each_time_needs_no_share(lines: Any, spark: SparkSession, place: Place) -> None:
    """A varying value of one branch only; a Python function that the user vouches for; a table that is in the plan."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    job = place.job(spark, deterministic_udfs=True)
    half = F.udf(lambda value: int(value) / 400, "double", useArrow=False)
    named = spark.createDataFrame([("1", "one")], "value STRING, name STRING")
    base = lines(job).withColumn("r", half("value")).join(named, "value", "left")
    split(job, base, place)
    job.write(lines(job).selectExpr("value", "uuid() AS id"), fp.SQLite(place.database, table="ids"))
    job.write(lines(job).dropDuplicates(), fp.SQLite(place.database, table="whole"))
    assert any("deterministic_udfs" in note for note in job.check().notes)
    job.run(until="available")
    assert (MANY // 2, MANY // 2) == tuple(len(table(place.database, name)) for name in ("low", "high"))


MOVED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a grouping by chance": (lambda lines: lines.groupBy(fp.rand().alias("r")).count(), "reflect()"),
    "rows that are dealt out": (lambda lines: lines.withColumn("u", fp.uuid()).repartition(3), "reflect()"),
    "a Python function": (lambda lines: lines.groupBy(draw()("value")).count(), "a Python function"),
    "a Python table function": (lambda lines: halved(lines).groupBy("r").count(), "a Python function"),
    "duplicates": (lambda lines: lines.selectExpr("uuid() AS u").dropDuplicates(), "uuid()"),
    "what is exploded": (lambda lines: lines.selectExpr("explode(array(uuid())) AS u").groupBy("u").count(), "uuid()"),
    "a rollup": (lambda lines: lines.selectExpr("uuid() AS u").rollup("u").count(), "uuid()"),
    "only a value": (lambda lines: lines.withColumn("r", fp.rand()).repartition(3, "value"), ""),
    "what the record says": (lambda lines: lines.groupBy("value").count(), ""),
    "the time": (lambda lines: lines.selectExpr("value", "now() AS t").groupBy("t").count(), ""),
}


@pytest.mark.parametrize("kind", MOVED)
def test_a_shuffle_by_chance_needs_sums_or_one_attempt(
    kind: str, lines: Any, spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rerun task would send the record elsewhere, where it is missed, or counted once more."""
    make, said = MOVED[kind]
    frames = {"sink": make(lines(place.job(spark)))}
    fork.check_moves(frames, "job", trusts_udfs=False)  # a lost file fails the epoch: one attempt
    monkeypatch.setattr(spark_session, "STAGE_ATTEMPTS", "spark.fencepost.nothing")
    fork.check_moves(frames, "job", trusts_udfs=False)  # and Spark compares sums
    spark.conf.set(fork.COMPARES, "false")
    try:
        if said:
            with pytest.raises(fp.Refused, match="moved_by_chance") as refused:
                fork.check_moves(frames, "job", trusts_udfs=False)
            assert (True, True) == (said in refused.value.what, fork.COMPARES in refused.value.next)
        else:
            fork.check_moves(frames, "job", trusts_udfs=False)
        if "Python" in kind:
            fork.check_moves(frames, "job", trusts_udfs=True)
    finally:
        spark.conf.set(fork.COMPARES, "true")  # as our sessions have it; Spark 4.1's default is false


LOSING = """
import json, os, sys
from pathlib import Path
import fencepost as fp
from fencepost.spark import fork
from pyspark.sql import functions as F

folder, conf = Path(sys.argv[1]), json.loads(sys.argv[2])
fork.check_moves = lambda *_, **__: None

def losing(row):
    "Once, in the first of four tasks: the others find no shuffle files."
    if not (folder / "lost").exists():
        (folder / "lost").touch()
        for disk in os.environ["SPARK_LOCAL_DIRS"].split(","):
            for file in Path(disk).rglob("shuffle_*.data"):
                file.unlink(missing_ok=True)
    return row

job = fp.Job("losing", checkpoint=folder / "checkpoint", conf=conf, deterministic_udfs=True)
lines = job.read(fp.Files(str(folder / "in"), format="text"))
moved = lines.withColumn("r", F.floor(fp.rand() * 1000)).repartition(4, "r").select("value")
job.write(job.map(moved, losing, output="value STRING"), fp.SQLite(folder / "out.db", table="rows"))
try:
    job.run(until="available")
except fp.Retryable:
    job.run(until="available")
"""


@pytest.mark.long
@pytest.mark.parametrize("compares", [True, False], ids=["sums", "sabotaged"])
def test_a_record_that_a_lost_shuffle_file_would_move_is_written_once(
    lines: Any, place: Place, tmp_path: Path, compares: bool
) -> None:
    """With sums the epoch fails and runs again; without them, and without our check, records are lost and doubled."""
    conf = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.stage.maxConsecutiveAttempts": "4",  # as on a cluster
        "spark.sql.shuffle.orderIndependentChecksum.enabled": str(compares).lower(),
        fork.COMPARES: str(compares).lower(),
    }
    command = [sys.executable, "-c", LOSING, str(place.root), json.dumps(conf)]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    subprocess.run(command, check=True, timeout=240, env=environment, capture_output=True)
    found = sorted(int(row[0]) for row in table(place.database, "rows"))
    assert (place.root / "lost").exists()
    assert compares == (list(range(MANY)) == found)


def of_with(lines: DataFrame, *query: str) -> DataFrame:
    """A query with a WITH clause, whose text is resolved once and used where its name stands."""
    lines.createOrReplaceTempView("lines")
    return lines.sparkSession.sql(" ".join(query))


class TestWith:
    CHANCE = "WITH c AS (SELECT value, rand() AS r FROM lines)"

    def test_it_is_part_of_the_plan(self, lines: Any, spark: SparkSession, place: Place) -> None:
        job = place.job(spark)
        query = "WITH c AS (SELECT int(value) AS n FROM lines) SELECT n FROM c UNION ALL SELECT n + 1000 FROM c"
        job.write(of_with(lines(job), query), fp.SQLite(place.database, table="rows"))
        job.run(until="available")
        assert [*range(MANY), *range(1000, 1000 + MANY)] == sorted(row[0] for row in table(place.database, "rows"))

    def test_chance_in_it_is_seen_between_branches_and_in_one(
        self, lines: Any, spark: SparkSession, place: Place
    ) -> None:
        two, one = place.job(spark), place.job(spark)
        split(two, of_with(lines(two), self.CHANCE, "SELECT * FROM c"), place)
        twice = "SELECT value FROM c WHERE r < 0.5 UNION ALL SELECT value FROM c WHERE r >= 0.5"
        one.write(of_with(lines(one), self.CHANCE, twice), fp.SQLite(place.database, table="rows"))
        for job in (two, one):
            with pytest.raises(fp.Refused, match="computed_twice"):
                job.run(until="available")

    def test_state_in_it_is_seen(self, lines: Any, spark: SparkSession, place: Place) -> None:
        job = place.job(spark)
        rows = of_with(lines(job), "WITH c AS (SELECT DISTINCT value FROM lines) SELECT * FROM c")
        job.write(rows, fp.SQLite(place.database, table="rows"))
        with pytest.raises(fp.Refused, match="mode_does_not_fit"):
            job.run(until="available")

    def test_a_source_in_it_is_named(self, spark: SparkSession, place: Place) -> None:
        lines = spark.readStream.format("socket").options(host="127.0.0.1", port="9").load()
        job = place.job(spark)
        job.write(
            of_with(lines, "WITH c AS (SELECT * FROM lines) SELECT * FROM c"), fp.SQLite(place.database, table="t")
        )
        with pytest.raises(fp.Refused, match="socket") as refused:
            job.run(until="available")
        assert "CTE" not in str(refused.value)

    def test_a_writer_is_refused(self, lines: Any, spark: SparkSession, place: Place) -> None:
        """Its plan is fixed."""
        rows = of_with(lines(place.job(spark)), self.CHANCE, "SELECT value FROM c")
        with pytest.raises(fp.Refused, match="with_in_writer"):
            fp.start(rows.writeStream, to=fp.SQLite(place.database, table="rows"), checkpoint=place.checkpoint)
