"""Branches that differ only in stateless steps are one scan, with the rows that separate reads give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fencepost_proof.fuzz import runs
from fencepost_proof.fuzz.plans import Place as FuzzPlace
from fencepost_proof.fuzz.runs import reading_apart
from fencepost_proof.fuzz.worker import SETTINGS, Worker
from streams import Place, drop_json, table
from tests.helpers.sessions import SMALL

import fencepost as fp
from fencepost.runtime.checks import look
from fencepost.spark import branches, scan
from fencepost.store.staging import TAG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SEED = 1166
"""Of a random job with four branches that are one scan."""

Branches = Callable[[Any], Mapping[str, Any]]
"""Of the rows of the source: DataFrames by name."""


def feed(place: Place, first: int, many: int = 40) -> None:
    numbers = range(first, first + many)
    rows = [{"id": id_, "k": None if id_ % 11 == 0 else id_ % 5, "text": f"a{id_} b"} for id_ in numbers]
    drop_json(place.input, *rows[: many // 2])
    drop_json(place.input, *rows[many // 2 :])


def read(job: fp.Job, place: Place) -> DataFrame:
    """Nothing in the files is called void."""
    return job.read(fp.Files(str(place.input), format="json", schema="id BIGINT, k INT, text STRING, void INT"))


def job_of(place: Place, spark: SparkSession, of: Branches, **settings: Any) -> fp.Job:
    job = place.job(spark, **settings)
    for name, frame in of(read(job, place)).items():
        key = {"key": "k"} if name.startswith("counts") else {}
        job.write(frame, fp.SQLite(place.database, table=name, name=name, **key))
    return job


def stateless(rows: Any) -> dict[str, Any]:
    """Steps that could go wrong: errors behind a filter, nulls in conditions, names that mean two things."""
    valid = rows.where("k IS NOT NULL").withColumn("twice", rows.id * 2)
    return {
        "all_rows": rows,
        "divided": rows.where("k <> 0").selectExpr("id", "100 div k AS part").where("part > 30"),  # 0 is an error
        "null_safe": rows.where("NOT k = 1").selectExpr("k AS id", "id AS k"),
        "of_valid": valid.where("twice % 4 = 0").selectExpr("twice AS `a.b`", "struct(id, k).k AS id"),
        "of_valid_too": valid.alias("v").selectExpr("v.twice", "current_timestamp() IS NULL AS never"),
        "words": rows.selectExpr("id", "explode(split(text, ' ')) AS word"),  # more rows than records: it reads alone
    }


def tables(place: Place, names: Any) -> dict[str, list[Any]]:
    return {name: table(place.database, name) for name in names}


def test_each_record_is_read_once_for_all_branches_and_the_rows_are_the_same(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    feed(place, 0)
    job = job_of(place, spark, stateless)
    note = "5 branches are one scan, which reads each record once: all_rows, divided, null_safe, of_valid, of_valid_too"
    assert note in job.check().notes
    query = job.start()
    query.processAllAvailable()
    (report,) = [one for one in query.recentProgress if one["numInputRows"]]
    job.stop()
    other = Place(tmp_path / "apart", watched=place.input)
    other.root.mkdir()
    with reading_apart():
        job_of(other, spark, stateless).run(until="available")
    names = stateless(read(job, place))
    assert tables(other, names) == tables(place, names)
    assert 2 * 40 == report["numInputRows"]  # the scan, and the branch with more rows than records


SOME_ROWS: Mapping[str, tuple[str, ...]] = {
    "a number from a text that is none, behind AND": (
        "SELECT id, id < 0 AND CAST(text AS INT) > 5 AS large FROM rows",
        "SELECT id, id < 0 AND CAST(text AS INT) <= 5 AS small FROM rows",
    ),
    "in the middle of three": (
        "SELECT id, id < 0 AND CAST(text AS INT) > 5 AND k > 3 AS large FROM rows",
        "SELECT id, id < 0 AND CAST(text AS INT) <= 5 AND k > 4 AS small FROM rows",
    ),
    "behind OR": (
        "SELECT id, id >= 0 OR CAST(text AS INT) > 5 AS large FROM rows",
        "SELECT id, id >= 0 OR CAST(text AS INT) <= 5 AS small FROM rows",
    ),
    "a division by zero, behind a filter or not": (
        "SELECT id, k <> 0 AND 100 div k > 30 AS large FROM rows",
        "SELECT id, k <> 0 AND 100 div k <= 30 AS small FROM rows",
        "SELECT id, k <> 0 AND 100 div k = 30 AS equal FROM rows WHERE k < 3",
        "SELECT id, 100 div k AS part FROM rows WHERE k <> 0 AND k % 2 = 0",
    ),
    "a place that an array does not have": (
        "SELECT id, id < 0 AND split(text, ' ')[7] = 'x' AS x FROM rows",
        "SELECT id, id < 0 AND split(text, ' ')[7] = 'y' AS y FROM rows",
    ),
    "behind a NULL": (
        "SELECT id, CASE WHEN k = 7 THEN 1 END + CAST(text AS INT) AS more FROM rows",
        "SELECT id, CASE WHEN k = 8 THEN 1 END + CAST(text AS INT) AS more FROM rows",
    ),
    "guarded by CASE, IF and COALESCE": (
        "SELECT id, CASE WHEN k = 7 THEN CAST(text AS INT) END AS n FROM rows",
        "SELECT id, CASE WHEN k = 7 THEN CAST(text AS INT) END + 1 AS n FROM rows",
        "SELECT id, IF(k = 7, CAST(text AS INT), 0) AS n, id >= 0 OR CAST(text AS INT) > 5 AS more FROM rows",
        "SELECT id, COALESCE(id, CAST(text AS INT)) AS n FROM rows",
    ),
    "with functions that do not fail": (
        "SELECT id, try_cast(text AS INT) IS NULL AND try_divide(1, k) > 0.2 AS large FROM rows",
        "SELECT id, try_cast(text AS INT) IS NULL AND try_divide(1, k) <= 0.2 AS small FROM rows",
    ),
    "in what the branches share, of which each reads a part": (
        "SELECT id, large FROM parts",
        "SELECT id, small FROM parts",
    ),
    "in one column, and by a filter that reads it": (
        "SELECT id FROM rows WHERE k > 0",
        "SELECT id FROM (SELECT id, 100 div k AS part FROM rows WHERE k <> 0) WHERE part > 30 AND part < 90",
    ),
}
"""What separate reads compute for some rows only: in one scan two branches have it in common."""
PARTS = ("id", "id < 0 AND CAST(text AS INT) > 5 AS large", "id < 0 AND CAST(text AS INT) <= 5 AS small")
SOME_ROWS_PASS: Mapping[str, tuple[str, ...]] = {
    "a number from a text that is none, behind AND": (
        "SELECT id FROM rows WHERE k = 7 AND CAST(text AS INT) > 5",
        "SELECT id FROM rows WHERE k = 8 AND CAST(text AS INT) <= 5",
    ),
    "twice in one branch": (
        "SELECT id FROM rows WHERE id < 0 AND CAST(text AS INT) > 5 AND CAST(text AS INT) < 9",
        "SELECT id FROM rows WHERE 100 div k > 0",
    ),
    "before what the source itself can skip": (
        "SELECT id FROM rows WHERE CAST(text AS INT) > 5 AND k = 7",
        "SELECT id FROM rows WHERE CAST(text AS INT) <= 5 AND k = 7",
    ),
    "or only in the step before": (
        "SELECT id FROM (SELECT * FROM rows WHERE CAST(text AS INT) > 5) WHERE k = 7",
        "SELECT id FROM (SELECT * FROM rows WHERE CAST(text AS INT) <= 5) WHERE k = 7",
    ),
    "where something else is NULL": (
        "SELECT id FROM rows WHERE CAST(text AS INT) > void",
        "SELECT id FROM rows WHERE CAST(text AS INT) <= void",
    ),
    "where something else that is computed is NULL": (
        "SELECT id FROM numbers WHERE n > part",
        "SELECT id FROM numbers WHERE n <= part",
    ),
    "where another part of the same is NULL": (
        "SELECT id FROM (SELECT id, CAST(text AS INT) + void AS n FROM rows) WHERE n > 3",
        "SELECT id FROM (SELECT id, CAST(text AS INT) + void AS n FROM rows) WHERE n <= 3",
    ),
}
"""The same in filters, which Spark may compute in another order than they are written, or not at all."""


def views(spark: SparkSession, queries: tuple[str, ...]) -> Branches:
    def of(rows: Any) -> dict[str, Any]:
        rows.createOrReplaceTempView("rows")
        rows.selectExpr(*PARTS).createOrReplaceTempView("parts")
        rows.selectExpr("id", "CAST(text AS INT) AS n", "void + 1 AS part").createOrReplaceTempView("numbers")
        return {f"branch_{at}": spark.sql(query) for at, query in enumerate(queries)}

    return of


@pytest.mark.parametrize("what", SOME_ROWS)
def test_what_separate_reads_compute_for_some_rows_one_scan_computes_for_no_others(
    spark: SparkSession, place: Place, what: str, tmp_path: Path
) -> None:
    feed(place, 0)
    of = views(spark, SOME_ROWS[what])
    names = [f"branch_{at}" for at in range(len(SOME_ROWS[what]))]
    other = Place(tmp_path / "apart", watched=place.input)
    other.root.mkdir()
    job_of(other, spark, of, one_scan=False).run(until="available")
    job = job_of(place, spark, of)
    assert f"{len(names)} branches are one scan, which reads each record once: {', '.join(names)}" in job.check().notes
    job.run(until="available")
    assert tables(other, names) == tables(place, names)


@pytest.mark.parametrize("what", SOME_ROWS_PASS)
def test_branches_whose_filters_may_fail_read_for_themselves(spark: SparkSession, place: Place, what: str) -> None:
    feed(place, 0)
    job = job_of(place, spark, views(spark, SOME_ROWS_PASS[what]))
    assert "one scan" not in str(job.check().notes)
    if "twice" not in what:
        job.run(until="available")
        assert [] == table(place.database, "branch_0")


FILTERS = {
    "amount > 10": True,
    "amount % 2 = 0": False,
    "id % 2 = 0": True,
    "id % 0 = 0": False,
    "id % k = 0": False,
    "text LIKE 'a%'": True,
    "text LIKE '\\\\a%'": False,
    "text LIKE text": False,
    "k IN (1, 2, 3) AND id NOT IN (4, 5)": True,
    "startswith(text, 'a') AND length(text) > 2": True,
    "k > 1.5 OR k + 1 > 2": False,
    "CAST(id AS INT) > 2": False,
    "CAST(k AS STRING) = '2'": True,
    "text = 2": False,
}
"""Can a filter be one of several in a scan? Only if it gives an answer for any value."""


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_is_taken_along_if_it_cannot_fail(spark: SparkSession, place: Place, condition: str) -> None:
    feed(place, 0, 2)
    rows = read(place.job(spark), place).selectExpr("*", "CAST(k AS DECIMAL(12, 2)) AS amount")
    found = scan.scans({"a": rows.where("id > 0"), "b": rows.where(condition)})
    assert FILTERS[condition] is ([("a", "b")] == [one.names for one in found])


def test_a_scan_that_cannot_fail_leaves_spark_its_way_of_computing(spark: SparkSession, place: Place) -> None:
    feed(place, 0)
    harmless = job_of(place, spark, both)
    assert (1, {}) == (len(harmless._launch().scans), scan.settings(harmless._launch().scans))
    risky = job_of(place, spark, lambda rows: both(rows) | {"c": rows.selectExpr("100 div k AS part")})
    found = {one.name: one.value for one in look(risky._launch(looks=True)).settings}
    assert scan.AS_WRITTEN.items() <= found.items()
    before = {name: spark.conf.get(name) for name in scan.AS_WRITTEN}
    query = harmless.start()
    harmless.stop()
    assert before == {name: spark.conf.get(name) for name in scan.AS_WRITTEN} != scan.AS_WRITTEN
    assert not query.isActive


def test_every_branch_reads_for_itself_if_its_user_says_so(spark: SparkSession, place: Place) -> None:
    feed(place, 0)
    launch = job_of(place, spark, both, one_scan=False)._launch(looks=True)
    assert ([], False) == (launch.scans, launch.reads_once)
    assert scan.AS_WRITTEN.keys().isdisjoint(one.name for one in look(launch).settings)
    job = job_of(place, spark, both, environment={"FENCEPOST_ONE_SCAN": "no", "FENCEPOST_CONFIG": ""})
    assert "one scan" not in str(job.check().notes)


APART: Mapping[str, Branches] = {
    "what a filter keeps others from being computed for": lambda rows: {
        "a": (base := rows.withColumn("n", rows.text.cast("int"))).where("k = 7 AND n > 5"),
        "b": base.where("k = 8 AND n <= 5"),
    },
    "what a filter reads only if it has to": lambda rows: {
        "a": (base := rows.withColumn("n", rows.text.cast("int"))).where("id >= 0 OR n > 5").select("id"),
        "b": base.where("id >= 0 OR n <= 5").select("id"),
    },
    "what another column's filter does": lambda rows: {
        "a": (base := rows.selectExpr("k + 1 AS next", "CAST(text AS INT) AS n")).where("next = 8"),
        "b": base.where("next = 9"),
    },
    "what a filter keeps others from being computed for, below a join": lambda rows: {
        "a": (base := joined(rows.withColumn("n", rows.text.cast("int")), "l.id = r.id")).where("k = 7"),
        "b": base.where("k = 8"),
    },
    "what a filter keeps others from being joined by": lambda rows: {
        "a": (base := joined(rows, "CAST(text AS INT) = r.id")).where("k = 7"),
        "b": base.where("k = 8"),
    },
    "a field that is corrupt only if it is read": lambda rows: {
        "a": (base := rows.selectExpr("from_json(text, 'x INT, _corrupt_record STRING') AS read")).where(
            "read._corrupt_record IS NULL"
        ),
        "b": base.select("read.x"),
    },
}


def joined(rows: Any, on: str) -> Any:
    """With a table."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    return rows.alias("l").join(rows.sparkSession.range(99).alias("r"), F.expr(on)).select("l.*")


@pytest.mark.parametrize("why", APART)
def test_branches_read_for_themselves_where_a_common_scan_would_compute_or_parse_more(
    spark: SparkSession, place: Place, why: str
) -> None:
    feed(place, 0)
    job = job_of(place, spark, APART[why])
    assert "one scan" not in str(job.check().notes)
    job.run(until="available")


def test_a_source_whose_records_are_corrupt_by_the_columns_that_are_read_is_no_common_one(
    spark: SparkSession, place: Place
) -> None:
    drop_json(place.input, {"id": 1, "k": "x"})
    job = place.job(spark)
    rows = job.read(fp.Files(str(place.input), format="json", schema="id BIGINT, k INT, _corrupt_record STRING"))
    job.write(rows.where("_corrupt_record IS NULL").select("id"), fp.SQLite(place.database, table="a", name="a"))
    job.write(rows.select("id", "k"), fp.SQLite(place.database, table="b", name="b"))
    assert "one scan" not in str(job.check().notes)
    job.run(until="available")
    assert [(1,)] == table(place.database, "a")


def test_a_checkpoint_goes_on_from_separate_reads_to_one_scan_and_back(spark: SparkSession, place: Place) -> None:
    """State and positions are found by their numbers in the plan: both plans have the same."""
    second = Place(place.root / "second")

    def start() -> None:
        job = place.job(spark)
        rows, others = read(job, place), read(job, second)
        frames = {  # two scans, one in the other, around state
            "a_low": rows.where("k < 2").select("id"),
            "b_other": others.where("k = 3").select("id"),
            "counts": rows.where("k >= 0").groupBy("k").count(),
            "d_high": rows.where("k >= 2").select("id"),
            "e_other": others.where("k <> 3").select("id"),
        }
        for name, frame in frames.items():
            key = {"key": "k"} if name == "counts" else {}
            job.write(frame, fp.SQLite(place.database, table=name, name=name, **key))
        assert 2 * (not apart) == str(job.check().notes).count("are one scan")
        job.run(until="available")

    for epoch, apart in enumerate([True, False, True]):  # before an upgrade, after it, and back
        feed(place, 40 * epoch)
        feed(second, 40 * epoch, 20)
        with reading_apart() if apart else nullcontext():
            start()
    lines = {file.name: file.read_text().splitlines()[2:] for file in place.checkpoint.glob("offsets/[0-9]")}
    assert {str(epoch): [f'{{"logOffset":{epoch}}}'] * 5 for epoch in range(3)} == lines
    keys = {id_: None if id_ % 11 == 0 else id_ % 5 for id_ in range(120)}
    some = {id_: key for id_, key in keys.items() if id_ % 40 < 20}
    expected = {
        "a_low": [id_ for id_, key in keys.items() if key in (0, 1)],
        "b_other": [id_ for id_, key in some.items() if key == 3],
        "d_high": [id_ for id_, key in keys.items() if key in (2, 3, 4)],
        "e_other": [id_ for id_, key in some.items() if key not in (3, None)],
    }
    assert expected == {name: sorted(row[0] for row in table(place.database, name)) for name in expected}
    assert Counter(key for key in keys.values() if key is not None) == dict(table(place.database, "counts"))


def groups(spark: SparkSession, place: Place, of: Branches) -> list[tuple[str, ...]]:
    return [one.names for one in scan.scans(of(read(place.job(spark), place)))]


def both(rows: Any) -> dict[str, Any]:
    return {"a": rows.where("k = 1"), "b": rows.where("k = 2").select("id")}


def udf() -> Any:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    return F.udf(lambda value: value, "bigint", useArrow=False)


TOGETHER: dict[str, tuple[Branches, list[tuple[str, ...]]]] = {
    "stateless": (both, [("a", "b")]),
    "a Python function below both": (lambda rows: both(rows.withColumn("k", udf()("k"))), [("a", "b")]),
    "a Python function below both, and filters by something else": (
        lambda rows: both(rows.withColumn("id", udf()("id"))),
        [],
    ),
    "a Python function in one": (lambda rows: both(rows) | {"c": rows.select(udf()("id"))}, [("a", "b")]),
    "something random in one": (lambda rows: both(rows) | {"c": rows.where("rand() < 0.5")}, [("a", "b")]),
    "a table below both": (lambda rows: both(rows.join(rows.sparkSession.range(9), "id")), [("a", "b")]),
    "two sources below both": (lambda rows: both(rows.unionAll(rows.where("id > 3"))), [("a", "b")]),
    "state below both": (lambda rows: both(rows.dropDuplicates(["id", "k", "text"])), []),
    "a watermark": (lambda rows: both(timed(rows)), [("a", "b")]),
    "a watermark that state waits for": (lambda rows: both(timed(rows)) | {"c": timed(rows).groupBy("k").count()}, []),
    "records that Spark drops": (lambda rows: both(dropping(rows)), []),
    "more rows than records": (lambda rows: {"a": rows, "b": rows.selectExpr("explode(array(1, 2))")}, []),
}


def dropping(rows: Any) -> Any:
    return rows.sparkSession.readStream.schema(rows.schema).json(".", mode="DROPMALFORMED")


def timed(rows: Any) -> Any:
    return rows.selectExpr("*", "TIMESTAMP'2020-01-01 00:00:00' AS t").withWatermark("t", "1 minute")


@pytest.mark.parametrize("kind", TOGETHER)
def test_only_branches_over_the_same_rows_without_state_are_one_scan(
    kind: str, spark: SparkSession, place: Place
) -> None:
    feed(place, 0, 2)
    of, wanted = TOGETHER[kind]
    assert wanted == groups(spark, place, of)


def test_two_sources_that_are_not_equal_are_two_scans(spark: SparkSession, place: Place) -> None:
    """Each has positions of its own, which may end an epoch elsewhere."""
    feed(place, 0, 2)
    job = place.job(spark)
    assert [] == scan.scans({"a": read(job, place), "b": read(job, place).where("k = 1")})


def test_names_of_sinks_may_differ_in_their_case_only(spark: SparkSession, place: Place) -> None:
    feed(place, 0, 2)
    rows = read(place.job(spark), place)
    frames = {"a": rows.where("k = 1"), "A": rows.select("id")}
    (one,) = scan.scans(frames)
    assert [TAG, "a", "A"] == branches.union(frames, [one]).columns


def test_good_rows_and_dead_letters_are_one_scan(
    spark: SparkSession, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.say('{"id": 1}', "no JSON", '{"id": 2}')
    job = place.job(spark, quiet=False)
    dead = fp.SQLite(place.database, table="dead", name="dead")
    rows = job.parse(place.text(job), schema="id BIGINT", on_bad_record="dead_letter", dead_letters=dead)
    job.write(rows.where("id > 0"), fp.SQLite(place.database, table="rows", name="rows"))
    assert "2 branches are one scan, which reads each record once: dead, rows" in job.check().notes
    job.run(until="available")
    assert [(1,), (2,)] == table(place.database, "rows")
    assert ["no JSON"] == [row[2] for row in table(place.database, "dead")]
    assert "3 epochs, 3 records in, 3 rows out" in capsys.readouterr().err


def test_statistics_of_files_still_skip_what_no_branch_keeps(spark: SparkSession, place: Place) -> None:
    spark.range(9).write.parquet(str(place.input))
    rows = place.job(spark).read(fp.Files(str(place.input), format="parquet", schema="id BIGINT"))
    (one,) = scan.scans({"a": rows.where("id < 2"), "b": rows.where("id = 5").selectExpr("id + 1 AS id")})
    assert "Filter ((id#" in str(one.rows._jdf.queryExecution().analyzed().toString())


def test_the_fuzzer_finds_rows_in_the_wrong_branch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin that must be caught: the scan mixes the numbers of its branches up."""
    right = scan.Scan.fan_out

    def wrong(self: scan.Scan, tag: str, tags: Mapping[str, int]) -> Any:
        return right(self, tag, dict(zip(tags, reversed(tags.values()), strict=True)))

    monkeypatch.setattr(scan.Scan, "fan_out", wrong)
    outcome = runs.run(SEED, FuzzPlace(tmp_path), spark, runs.here(spark), starts=1)
    assert "wrong" == outcome.verdict, str(outcome)


@pytest.mark.long
def test_kills_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The driver is another process, and the fault is SIGKILL. Every start makes one scan, also the killed one."""
    with closing(Worker({**SETTINGS, **SMALL})) as worker:
        story = runs.Story(SEED, FuzzPlace(tmp_path), spark, worker)
        story._luck = SimpleNamespace(random=lambda: 1.0)  # type: ignore[assignment]
        assert all([story.begins(), story.goes_on("kill"), story.goes_on("kill")])
        story.ends()
    assert ([], True) == (story.outcome.wrong, "(killed)" in str(story.outcome)), str(story.outcome)
