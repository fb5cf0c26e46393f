"""What an operator does to rows that it emitted before decides which sinks its branch may go to.

emits each row once          dropDuplicates, joins, map_with_state                   any sink
emits it again, or changed   aggregates, SELECT DISTINCT, EXCEPT, outputMode=update  a key, or mode="append"
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.functions import udf
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType
from streams import Place, table

import fencepost as fp
from fencepost.errors import BadConfig
from fencepost.runtime import checks
from fencepost.spark import fork, plan

pytestmark = [pytest.mark.spark]


@pytest.fixture
def stream(spark: Any, place: Place) -> Any:
    """Lines of text, which SQL knows as `lines`; `few` is a table with one of them, `totals` an aggregate."""
    place.say("a", "b", "a")
    lines = place.text(place.job(spark))
    lines.createOrReplaceTempView("lines")
    lines.selectExpr("value", "current_timestamp() AS t").withWatermark("t", "1 hour").createOrReplaceTempView("timed")
    spark.createDataFrame([("b",)], "value STRING").createOrReplaceTempView("few")
    totals = "SELECT value, count(*) AS n, sum(length(value)) AS total FROM lines GROUP BY value"
    spark.sql(totals).createOrReplaceTempView("totals")
    return lines


AGAIN = {
    "SELECT DISTINCT value FROM lines": True,
    "SELECT value FROM lines UNION SELECT value FROM few WHERE false": True,
    "SELECT value FROM lines EXCEPT SELECT value FROM few": True,
    "WITH once AS (SELECT DISTINCT value FROM lines) SELECT value FROM once": True,
    "SELECT value, count(*) AS n FROM lines GROUP BY value": True,
    "SELECT value, count(*) AS n FROM lines GROUP BY ROLLUP (value)": True,
    "SELECT value, count(*) AS n FROM timed GROUP BY value": True,  # its groups never end
    "SELECT DISTINCT value FROM timed": True,
    "SELECT DISTINCT value, t FROM timed": False,
    "SELECT window, count(*) AS n FROM timed GROUP BY window(t, '1 hour')": False,
}
"""Queries that emit a row again in update mode; is that the only mode they have?"""
ONCE = (
    "SELECT value FROM lines",
    "SELECT value FROM lines JOIN (SELECT DISTINCT value FROM few) USING (value)",
    "SELECT value FROM lines WHERE value IN (SELECT value FROM few GROUP BY value)",
    "SELECT l.value FROM timed l JOIN timed r ON l.value = r.value AND l.t = r.t",
)
"""Queries that emit a row once, whatever the mode; static sides may aggregate as they like."""


@pytest.mark.parametrize("query", AGAIN)
def test_a_query_that_emits_rows_again_has_mode_update(spark: Any, stream: Any, query: str) -> None:
    frame = spark.sql(query)
    assert (AGAIN[query], "update", "append") == (
        plan.needs_update(frame),
        plan.branch_mode(frame, "update"),
        plan.branch_mode(frame, "append"),
    )


@pytest.mark.parametrize("query", ONCE)
def test_a_query_that_emits_rows_once_has_mode_append_in_any_job(spark: Any, stream: Any, query: str) -> None:
    frame = spark.sql(query)
    assert (False, "append") == (plan.needs_update(frame), plan.branch_mode(frame, "update"))


@pytest.mark.parametrize("columns", [None, ["value"]])
def test_drop_duplicates_emits_rows_once(stream: Any, columns: list[str] | None) -> None:
    assert "append" == plan.branch_mode(stream.dropDuplicates(columns), "update")


@pytest.mark.parametrize(("declared", "mode"), [("Append", "append"), ("Update", "update")])
def test_an_operator_with_its_own_mode_keeps_it(stream: Any, declared: str, mode: str) -> None:
    """PySpark asks for pandas before it builds such a plan, and the plan does not need it."""
    grouped = stream.groupBy("value")._jgd
    function = udf(lambda value: value, "value STRING", useArrow=False)("value")._jc
    schema = stream._jdf.schema()
    pandas = grouped.applyInPandasWithState(function, schema, schema, declared, "NoTimeout")
    keyed = grouped.transformWithStateInPySpark(function, schema, declared, "None", None, "")
    for jdf in (pandas, keyed):
        frame = type(stream)(jdf, stream.sparkSession)
        assert (mode == "update", mode) == (plan.needs_update(frame), plan.branch_mode(frame, "update"))


def test_a_distinct_without_a_key_is_refused_before_data_flows(spark: Any, stream: Any, place: Place) -> None:
    job = place.job(spark).write(spark.sql("SELECT DISTINCT value FROM lines"), fp.SQLite(place.database, table="once"))
    with pytest.raises(BadConfig, match="dropDuplicates") as caught:
        job.start()
    assert ("mode_does_not_fit", "sqlite:once") == (caught.value.code, caught.value.where.sink)
    assert not place.checkpoint.exists()
    assert not place.database.exists()


def test_a_distinct_beside_an_aggregate_is_refused_although_it_could_append_alone(
    spark: Any, stream: Any, place: Place
) -> None:
    job = place.counting(spark)
    job.write(spark.sql("SELECT DISTINCT value, t FROM timed"), fp.SQLite(place.database, table="once"))
    with pytest.raises(BadConfig) as caught:
        job.start()
    assert ("mode_does_not_fit", "sqlite:once") == (caught.value.code, caught.value.where.sink)


def test_a_distinct_with_a_key_is_exact(spark: Any, stream: Any, place: Place) -> None:
    job = place.job(spark)
    job.write(spark.sql("SELECT DISTINCT value FROM lines"), fp.SQLite(place.database, table="once", key="value"))
    job.run(until="available")
    assert [("a",), ("b",)] == table(place.database, "once")


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("SELECT value FROM lines EXCEPT ALL SELECT value FROM few", "update"),
        ("SELECT value FROM lines EXCEPT SELECT value FROM few", "append"),
    ],
)
def test_an_except_that_spark_accepts_and_gets_wrong_is_refused(spark: Any, stream: Any, query: str, mode: str) -> None:
    """EXCEPT ALL subtracts the table again in every epoch; EXCEPT fails in the first epoch in append mode."""
    with pytest.raises(BadConfig, match="anti join") as caught:
        plan.check_plan(spark.sql(query), mode, "job")
    assert "plan_refused" == caught.value.code


def test_each_branch_must_fit_the_mode_and_not_only_the_first(spark: Any, stream: Any, place: Place) -> None:
    """Spark itself looks at the first aggregate of a plan, and fails in the first epoch for the second."""
    windows = spark.sql("SELECT window.start AS s, count(*) AS n FROM timed GROUP BY window(t, '1 hour')")
    counts = spark.sql("SELECT value, count(*) AS n FROM timed GROUP BY value")
    for mode in ("append", None):
        job = fp.Job("job", checkpoint=place.checkpoint, spark=spark, output_mode=mode)
        job.write(windows, fp.SQLite(place.database, table="windows", key="s"))
        job.write(counts, fp.SQLite(place.database, table="counts", key="value"))
        if mode is None:
            job.run(until="available")
            continue
        with pytest.raises(BadConfig) as caught:
            job.start()
        assert ("plan_refused", "sqlite:counts") == (caught.value.code, caught.value.where.sink)
    assert [("a", 2), ("b", 1)] == table(place.database, "counts")


LEAVES = {
    "SELECT value, count(*) AS n FROM lines GROUP BY value HAVING n < 10": True,
    "SELECT value, count(*) AS n FROM lines GROUP BY value HAVING sum(length(value)) > 10": True,
    "WITH c AS (SELECT value, count(*) AS n FROM lines GROUP BY value) SELECT * FROM c WHERE n % 2 = 0": True,
    "SELECT c.value, n FROM (SELECT value, count(*) AS n FROM lines GROUP BY value) c JOIN few ON few.value = n": True,
    "SELECT value, count(*) AS n FROM lines GROUP BY value HAVING n > 1": False,
    "SELECT value, max(length(value)) AS n FROM lines GROUP BY value HAVING 2 <= n AND value <> 'a'": False,
    "SELECT value, min(length(value)) AS n FROM lines GROUP BY value HAVING n < 7": False,
    "SELECT * FROM (SELECT value, count(*) AS n FROM lines GROUP BY value) WHERE value LIKE 'a%'": False,
    "SELECT value, count(*) AS n FROM lines WHERE length(value) < 10 GROUP BY value": False,
    "SELECT c.value, n FROM (SELECT value, count(*) AS n FROM lines GROUP BY value) c JOIN few USING (value)": False,
    "SELECT value FROM lines WHERE value < 'b'": False,
    "SELECT value, count(*) AS n FROM lines GROUP BY value HAVING n > length(value)": False,
    "SELECT value, count(*) AS n FROM lines GROUP BY value HAVING n > (SELECT count(*) FROM few)": True,
    "SELECT value, count(*) AS n FROM lines GROUP BY value HAVING n > 10 * rand()": True,
    "SELECT c.value FROM (SELECT value, count(*) AS n FROM lines GROUP BY value) c"
    " JOIN few ON few.value = c.value WHERE n > length(few.value)": True,
    "SELECT c.value FROM (SELECT value, count(*) AS n FROM lines GROUP BY value) c"
    " JOIN few ON few.value = c.value WHERE n > length(c.value)": False,
    "SELECT * FROM (SELECT value, count(*) AS n FROM lines GROUP BY value UNION ALL"
    " SELECT value, sum(length(value)) AS n FROM lines GROUP BY value) WHERE n < 3": True,
}
"""Queries, and whether a row that passed their filter may fail it later."""


EXPIRES = {
    "SELECT value, max(t) AS seen FROM timed GROUP BY value HAVING seen > now() - INTERVAL 1 HOUR": True,
    "SELECT value, max(t) AS seen FROM timed GROUP BY value HAVING seen > current_timestamp()": True,
    "SELECT value, max(t) AS seen FROM timed GROUP BY value HAVING date(seen) >= current_date()": True,
    "SELECT value FROM (SELECT value, max(t) AS seen, now() - INTERVAL 1 HOUR AS bound FROM timed GROUP BY value)"
    " WHERE seen > bound": True,
    "SELECT window.end AS e, count(*) AS n FROM timed GROUP BY window(t, '1 hour')"
    " HAVING window.end > now() - INTERVAL 1 DAY": True,
    "SELECT value, max(t) AS seen FROM timed GROUP BY value HAVING seen > TIMESTAMP '2024-01-01'": False,
    "SELECT value, count(*) AS n, now() AS at FROM timed GROUP BY value HAVING n > 2": False,
    "SELECT value, count(*) AS n FROM timed WHERE t > now() - INTERVAL 1 HOUR GROUP BY value": False,
    "SELECT value FROM timed WHERE t > now() - INTERVAL 1 HOUR": False,
}
"""Queries, and whether time alone makes a row fail their filter that passed it."""


@pytest.mark.parametrize("query", EXPIRES)
def test_a_filter_by_the_current_time_is_known_from_the_plan(spark: Any, stream: Any, query: str) -> None:
    """The optimizer puts a constant in its place, which looks like any other bound."""
    frame = spark.sql(query)
    assert EXPIRES[query] == plan.rows_expire(frame)
    assert not plan.rows_may_leave(frame)


CHANGING = {
    "SELECT *, CASE WHEN total > 5 THEN 'big' ELSE 'small' END AS tier FROM totals": ["tier"],
    "SELECT value, n AS tier FROM totals": ["tier"],
    "SELECT value, explode(array(total)) AS tier FROM totals": ["tier"],
    "SELECT t.value, few.value AS tier FROM totals t LEFT JOIN few ON few.value = t.total": ["tier"],
    "SELECT value, n AS tier FROM totals UNION ALL SELECT value, 1 AS tier FROM lines": ["tier"],
    "SELECT value, upper(value) AS tier, total FROM totals": [],
    "SELECT t.value, upper(few.value) AS tier FROM totals t JOIN few ON few.value = t.value": [],
    "SELECT value, length(value) AS tier, count(*) AS n FROM lines GROUP BY value, length(value)": [],
    "SELECT value, length(value) AS tier FROM lines": [],
}
"""Queries, and which columns of the key (value, tier) an aggregate changes."""


@pytest.mark.parametrize("query", CHANGING)
def test_a_key_that_an_aggregate_changes_is_known_from_the_plan(spark: Any, stream: Any, query: str) -> None:
    assert CHANGING[query] == plan.changing_columns(spark.sql(query), ("value", "tier"))


def test_a_key_that_a_python_function_makes_of_an_aggregate_is_known_too(stream: Any) -> None:
    counts = stream.groupBy("value").count()
    tier = udf(lambda count: "big" if count > 5 else "small", "string", useArrow=False)
    assert ["tier"] == plan.changing_columns(counts.withColumn("tier", tier("count")), ("value", "tier"))
    assert [] == plan.changing_columns(counts.withColumn("tier", tier(counts["value"])), ("value", "tier"))
    assert plan.rows_may_leave(counts.where(tier("count") == "big"))


@pytest.mark.parametrize("query", LEAVES)
def test_a_row_that_may_leave_the_result_is_known_from_the_plan(spark: Any, stream: Any, query: str) -> None:
    assert LEAVES[query] == plan.rows_may_leave(spark.sql(query))


def test_check_notes_that_a_row_which_leaves_the_result_stays_in_the_table(spark: Any, place: Place) -> None:
    def notes(frame: Any, **settings: Any) -> list[str]:
        job = place.job(spark).write(frame, fp.SQLite(place.database, table="few", **settings))
        found = [note for note in checks.look(job._launch(looks=True)).notes if "filter" in note]
        assert found == [note for note in job.check().notes if "filter" in note]  # in Python as on the command line
        return found

    place.say("a")
    counts = place.text(place.job(spark)).groupBy("value").count()
    [note] = notes(counts.where("count < 10"), key="value")
    assert note.startswith("sink sqlite:few: ")
    assert 'set deletes="is_deleted" on the sink' in note
    assert [] == notes(counts.where("count > 10"), key="value")
    assert [] == notes(counts.where("count < 10"), mode="append")
    [note] = notes(counts.where("now() > timestamp '2024-01-01'"), key="value")
    assert "goes by the current time" in note


def test_a_row_that_gets_another_key_leaves_the_old_one_and_check_says_so(spark: Any, place: Place) -> None:
    def tiers(key: Any) -> fp.Job:
        job = place.job(spark)
        counts = place.text(job).groupBy("value").count().selectExpr("*", "IF(count > 1, 'big', 'small') AS tier")
        return job.write(counts, fp.SQLite(place.database, table="tiers", key=key))

    for word in ("a", "a", "b"):
        place.say(word)
    [note] = [note for note in tiers(["tier", "value"]).check().notes if "key" in note]
    assert "sink sqlite:tiers: the key has tier, which the aggregate may change" in note
    assert [] == [note for note in tiers("value").check().notes if "key" in note]
    tiers(["tier", "value"]).run(until="available")
    assert [("a", 1, "small"), ("a", 2, "big"), ("b", 1, "small")] == sorted(table(place.database, "tiers"))


CHOSEN = {
    "SELECT value, first(length(value)) AS n FROM lines GROUP BY value": {"first()"},
    "SELECT value, last(length(value)) AS n, count(*) AS c FROM lines GROUP BY value": {"last()"},
    "SELECT value, max_by(value, length(value)) AS n FROM lines GROUP BY value": {"max_by()"},
    "SELECT value, collect_list(value) AS n FROM lines GROUP BY value": {"collect_list()"},
    "SELECT value, max(struct(length(value), value)) AS n FROM lines GROUP BY value": set(),
    "SELECT value, count(*) AS n FROM lines GROUP BY value": set(),
    "SELECT value FROM lines JOIN (SELECT value, first(value) FROM few GROUP BY value) USING (value)": set(),
    "SELECT DISTINCT value FROM lines": set(),
}
"""Queries, and what in them is chosen by the order of rows."""


@pytest.mark.parametrize("query", CHOSEN)
def test_what_is_chosen_by_the_order_of_rows_is_known_from_the_plan(spark: Any, stream: Any, query: str) -> None:
    assert CHOSEN[query] == set(fork.by_chance(spark.sql(query)))


def test_check_notes_what_is_chance(stream: Any, spark: Any, place: Place) -> None:
    rows = stream.selectExpr("value", "length(value) AS n")
    function = UserDefinedFunction(len, "value STRING", evalType=PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF)
    jdf = rows.groupBy("n")._jgd.flatMapGroupsInPandas(function("n", "value")._jc)
    grouped_map = type(stream)(jdf, spark)  # PySpark asks for pandas before it builds such a plan
    wanted = {
        "dropDuplicates keeps any of the rows": rows.dropDuplicates(["n"]),
        "a limit keeps any of the rows": rows.limit(1),
        "applyInPandas gets the rows of a group that are in one epoch": grouped_map,
        "": rows.dropDuplicates(),
    }
    for text, frame in wanted.items():
        job = place.job(spark).write(frame, fp.SQLite(place.database, table="few"))
        notes = [note for note in job.check().notes if any(said in note for said in wanted if said)]
        assert [True] * bool(text) == [note.startswith(f"sink sqlite:few: {text}") for note in notes]
