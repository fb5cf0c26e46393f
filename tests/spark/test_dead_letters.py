"""Bad records over real Spark: what is refused, what ends an epoch, what becomes a dead letter, and that no record is
ever in both places or in neither, whatever the function does.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fencepost_proof.kill.scene import KILLED, class_archive
from fencepost_proof.workloads.files import FilesWorkload
from fencepost_proof.workloads.process import OPTIONS, QUICK
from streams import Place, drop, table

import fencepost as fp
from fencepost.observe.journal import read
from fencepost.spark import fork, positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CANARY = "canary-7791"
"""A row's value, which must stand nowhere but in the sinks."""


def shipped(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """A function of a module travels by name, and no worker knows this module; one made in a function travels whole."""
    return make()


@shipped
def number() -> Callable[..., Any]:
    def number(line: Any) -> Any:
        return (int(line.value),)

    return number


@shipped
def by_chance() -> Callable[..., Any]:
    def by_chance(line: Any) -> Any:
        import random  # noqa: PLC0415 - in the worker

        if random.random() < 0.4:  # a look-up that fails now and then
            raise TimeoutError("no answer")
        return (int(line.value),)

    return by_chance


def dead(place: Place, name: str = "dead") -> fp.SQLite:
    return fp.SQLite(place.root / f"{name}.db", table="dead_letters", name=name)


def rows(place: Place) -> fp.SQLite:
    return fp.SQLite(place.database, table="rows")


def letters(place: Place, name: str = "dead") -> list[tuple[Any, ...]]:
    return table(place.root / f"{name}.db", "dead_letters")


def ids(found: list[tuple[Any, ...]]) -> list[int]:
    return [int(record) for _, _, record, _ in found]


@pytest.fixture(scope="module")
def stream(spark: SparkSession) -> Any:
    return spark.readStream.format("rate").load().selectExpr("cast(value AS STRING) AS value", "value AS n")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"on_bad_record": "dead_letter"}, "no_dead_letters"),
        ({"on_bad_record": "dead_letter", "dead_letters": "dead.db"}, "no_dead_letters"),
        ({"dead_letters": fp.SQLite("dead.db", table="d")}, "dead_letters_unused"),
        ({"on_bad_record": "skip"}, "bad_on_bad_record"),
        ({"on_bad_record": "dead_letter", "dead_letters": fp.SQLite("x", table="d", name="taken")}, "sink_twice"),
        ({"schema": "id NUMBER"}, "bad_schema"),
        ({"column": "nobody"}, "unknown_column"),
        ({"keep": ["nobody"]}, "unknown_column"),
        ({"column": "n"}, "not_a_text"),
        ({"keep": ["n"], "schema": "N BIGINT"}, "duplicate_columns"),
    ],
)
def test_what_cannot_be_is_refused(stream: Any, given: dict[str, Any], code: str, place: Place) -> None:
    job = fp.Job("job", checkpoint=place.checkpoint, spark=stream.sparkSession)
    job.write(stream, fp.SQLite(place.database, table="rows", name="taken"))
    with pytest.raises(fp.Refused) as refused:
        job.parse(stream, **{"schema": "id BIGINT"} | given)
    assert code == refused.value.code


def test_a_dataframe_or_a_function_that_does_not_fit_is_refused(stream: Any, place: Place) -> None:
    spark = stream.sparkSession
    job = place.job(spark)
    told: dict[str, Any] = {"on_bad_record": "dead_letter", "dead_letters": dead(place)}
    functions: list[Any] = ["number", lambda: None, lambda a, b: None, lambda record: (yield)]
    wrong = {
        "not_a_stream": lambda: job.map(spark.createDataFrame([("1",)], "value STRING"), number, output="id BIGINT"),
        "state_before": lambda: job.map(stream.groupBy("value").count(), number, output="id BIGINT", **told),
        "nothing_to_write": lambda: (job.map(stream, number, output="id BIGINT", **told), job.check()),
    }
    for code, call in wrong.items():
        with pytest.raises(fp.Refused) as refused:
            call()
        assert code == refused.value.code
    chance = stream.selectExpr("cast(rand() AS STRING) AS value")
    for fn in functions:
        with pytest.raises(fp.Refused) as refused:
            job.map(chance, fn, output="id BIGINT")
        assert "bad_function" == refused.value.code


def test_input_that_may_differ_between_rows_and_dead_letters_is_refused(stream: Any, place: Place) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    same = F.udf(lambda value: value, useArrow=False)
    for value in (same("value"), F.expr("cast(rand() AS STRING)")):
        job = place.job(stream.sparkSession)
        told: dict[str, Any] = {"on_bad_record": "dead_letter", "dead_letters": dead(place)}
        parsed = job.parse(stream.select(value.alias("value")), schema="id BIGINT", **told)
        job.write(parsed, rows(place))
        with pytest.raises(fp.Refused) as refused:
            job.run(until="available")
        assert "computed_twice" == refused.value.code


def test_rows_whose_dead_letters_would_go_nowhere_are_refused(spark: SparkSession, place: Place) -> None:
    place.say("1")
    mine, other = place.job(spark), fp.Job("other", checkpoint=place.root / "other", spark=spark)
    for given in (
        mine.parse(place.text(mine), schema="a INT", on_bad_record="dead_letter", dead_letters=dead(place)),
        mine.map(place.text(mine), number, output="a INT", on_bad_record="dead_letter", dead_letters=dead(place)),
    ):
        other._branches.clear()
        other.write(given, rows(place))
        with pytest.raises(fp.Refused) as refused:
            other.run(until="available")
        assert "dead_letters_elsewhere" == refused.value.code


def test_a_position_in_a_topic_is_its_partition_and_offset(spark: SparkSession) -> None:
    reader = spark.readStream.format("kafka").option("subscribe", "t").option("kafka.bootstrap.servers", "127.0.0.1:1")
    try:
        frame = reader.load()
    except Exception:  # noqa: BLE001 - Spark's own, in a session without the connector
        pytest.skip("no connector for Kafka")
    source, position = positions.origin(frame)
    there = spark.createDataFrame([("orders", 3, 17)], "topic STRING, partition INT, offset BIGINT").select(position)
    assert ("kafka", "orders-3@17") == (source, there.first()[0])  # type: ignore[index]
    assert "null" in str(positions.origin(frame.select("value"))[1]).lower()


def test_json_that_is_not_what_the_schema_says_becomes_a_dead_letter(spark: SparkSession, place: Place) -> None:
    good = ['{"id": 1, "amount": 2.5}', ' {"id": 2, "more": [1]} ', '{"id": 3, "amount": null, "in": {"a": 1}}']
    bad = [
        '{"id": 1} rest',
        '{"id": 1}{"id": 2}',
        '{"id": 1},{"id": 2}',
        '{"id": 1}],"b":[{}',
        '{"id": 1}]}',
        '[{"id": 1}]',
        '{"id": "one"}',
        '{"id": 1.5}',
        '{"id": 1, "amount": "much"}',
        '{"id": 99999999999999999999}',
        '{"amount": 1}',
        '{"id": null}',
        '{"id": 4, "in": {}}',
        '{"id": 4',
        "null",
        "7",
        CANARY,
    ]
    file = drop(place.input, "\n".join([*good, *bad, ""]) + "\n")
    raw = b'{"id": "\xff\xfe"}'
    place.input.joinpath("raw.txt").write_bytes(raw + b"\n")
    job = place.job(spark)
    orders = job.parse(
        place.text(job),
        schema="id BIGINT NOT NULL, amount DOUBLE, in STRUCT<a: INT NOT NULL>",
        on_bad_record="dead_letter",
        dead_letters=dead(place),
    )
    # A filter that no bad record passes, which Spark would like to apply first.
    job.write(orders.where("id > 0").selectExpr("id", "amount", "in.a AS a"), rows(place))
    assert {"sink dead", "sink sqlite:rows"} <= {row[0] for row in job.check().rows}
    job.run(until="available")
    noted = [(event.sink, event.rows or 0) for event in read(job.checkpoint) if event.dead]
    assert ({"dead"}, len(letters(place))) == ({sink for sink, _ in noted}, sum(rows for _, rows in noted))
    assert [(1, 2.5, None), (2, None, None), (3, None, 1)] == table(place.database, "rows")
    found = letters(place)
    no_text = "base64:" + base64.b64encode(raw).decode()
    assert sorted([*bad, "", no_text]) == sorted(row[2] for row in found)
    assert {f"file:{file}", f"file:{place.input}/raw.txt"} == {row[1] for row in found}
    why = {row[2]: row[3] for row in found}
    assert "the record has no id, which is NOT NULL" == why['{"amount": 1}'] == why['{"id": null}']
    assert "the record has no in.a, which is NOT NULL" == why['{"id": 4, "in": {}}']
    assert why[CANARY].startswith("the record is not a JSON object of id BIGINT, amount DOUBLE, in STRUCT")


@pytest.mark.parametrize("step", ["parse", "map"])
def test_a_bad_record_ends_the_epoch_and_the_error_has_its_place_but_not_its_value(
    spark: SparkSession, place: Place, step: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    place.say('{"id": 1}' if step == "parse" else "1", CANARY)
    job = place.job(spark)
    lines = place.text(job)
    made = job.parse(lines, schema="id BIGINT") if step == "parse" else job.map(lines, number, output="id BIGINT")
    # Nobody asks for the column, and no bad record would pass: it fails all the same.
    job.write(made.where("id > 0").selectExpr("1 AS one"), rows(place))
    with pytest.raises(fp.Retryable) as failed:
        job.run(until="available")
    assert "bad_record" == failed.value.code
    assert "0001.txt" in failed.value.what
    assert "on_bad_record='dead_letter'" in failed.value.next
    assert [(1,)] == table(place.database, "rows")
    said = "".join([str(failed.value), caplog.text, *capfd.readouterr()])
    said += "".join(path.read_text() for path in place.checkpoint.rglob("*.json*"))
    assert "0001.txt" in said
    assert CANARY not in said


def test_steps_may_share_a_sink_and_a_function_makes_any_number_of_rows(spark: SparkSession, place: Place) -> None:
    place.say('{"text": "1"}\n{"text": "none"}\n{"text": "2 3"}\n{"text": "x"}\nnope\n{"text": "300 4"}')

    def each(record: Any) -> Any:
        if record.text == "none":
            return None
        return [{"n": int(word), "at": 0} for word in record.text.split()]

    job = place.job(spark)
    sink = dead(place)
    told: Any = {"on_bad_record": "dead_letter", "dead_letters": sink}
    texts = job.parse(place.text(job), schema="text STRING", **told)
    job.write(job.map(texts, each, output="n TINYINT NOT NULL, at INT", **told), rows(place))
    job.run(until="available")
    assert [(1, 0), (2, 0), (3, 0)] == table(place.database, "rows")
    found = {row[2]: row[3] for row in letters(place)}
    assert {"x", "nope", "300 4"} == set(found)
    assert found["x"].startswith("ValueError: invalid literal for int() with base 10: 'x' (each, line ")
    assert "a int for n, which cannot hold it" in found["300 4"]


def test_an_epoch_without_a_good_record_is_decided_too(spark: SparkSession, place: Place) -> None:
    """Spark replaces a step that made no rows by an empty table that quotes its plan, once for each branch."""
    place.say("1", "x", "3")
    job = place.job(spark)
    told: Any = {"on_bad_record": "dead_letter", "dead_letters": dead(place)}
    numbers = job.map(place.text(job), number, output="n INT", **told)
    job.write(job.map(numbers, lambda row: (row.n,), output="n INT", **told), rows(place))
    job.run(until="available")
    assert ([(1,), (3,)], ["x"]) == (table(place.database, "rows"), [record for _, _, record, _ in letters(place)])


@pytest.mark.parametrize("before", ["parse", "map", "share"])
def test_a_record_keeps_its_position_through_every_step(spark: SparkSession, place: Place, before: str) -> None:
    """Also behind a filter and a computation of the user's, and nobody sees the column that carries it."""
    place.say('{"text": "1"}\n{"text": "x"}', '{"text": "y"}')
    job = place.job(spark)
    told: Any = {"on_bad_record": "dead_letter", "dead_letters": dead(place)}
    lines = place.text(job)
    if before == "parse":
        texts = job.parse(lines, schema="text STRING", **told)
    elif before == "map":
        texts = job.map(lines, lambda line: (line.value.split('"')[3],), output="text STRING")
    else:
        texts = job.parse(job.share(lines), schema="text STRING", **told)
    assert ["text"] == texts.columns
    once = job.map(texts.where("text <> ''").selectExpr("concat(text, '') AS value"), number, output="n INT", **told)
    twice = job.map(once, lambda row: (1 // (row.n - 1),), output="n INT", **told)
    assert ["n"] == twice.columns
    job.write(twice, rows(place))
    job.run(until="available")
    first, second = (f"file:{place.input}/{name}.txt" for name in ("0000", "0001"))
    assert [("x", first), ("y", second), ('{"n": 1}', first)] == sorted((row[2], row[1]) for row in letters(place))


def test_a_function_that_returns_no_row_at_all_ends_the_epoch(spark: SparkSession, place: Place) -> None:
    place.say("1")
    job = place.job(spark)
    made = job.map(
        place.text(job), lambda line: 7, output="n INT", on_bad_record="dead_letter", dead_letters=dead(place)
    )
    job.write(made, rows(place))
    with pytest.raises(fp.Retryable) as failed:
        job.run(until="available")
    assert "bad_output" == failed.value.code


def test_a_function_that_fails_by_chance_is_called_once_for_all_branches(spark: SparkSession, place: Place) -> None:
    """Two branches of rows and one of dead letters agree about every record."""
    for file in range(2):
        drop(place.input, "".join(f"{file * 150 + n}\n" for n in range(150)))
    job = place.job(spark, "jvm")
    made = job.map(place.text(job), by_chance, output="n BIGINT", on_bad_record="dead_letter", dead_letters=dead(place))
    job.write(made.where("n >= 0"), rows(place))
    counts = made.groupBy((made.n % 7).alias("k")).count()
    job.write(counts, fp.SQLite(place.root / "counts.db", table="counts", key="k"))
    job.run(until="available")
    good = [row[0] for row in table(place.database, "rows")]
    bad = ids(letters(place))
    assert list(range(300)) == sorted(good + bad)
    assert 0 < len(bad) < 300
    assert Counter(n % 7 for n in good) == dict(table(place.root / "counts.db", "counts"))


def test_the_proof_finds_a_plan_that_calls_twice(spark: SparkSession, place: Place) -> None:
    """The twin that must be caught: without reuse of shuffles each branch calls the function for itself."""
    place.say("1")
    job = place.job(spark, "foreach_batch")
    made = job.map(place.text(job), by_chance, output="n BIGINT", on_bad_record="dead_letter", dead_letters=dead(place))
    job.write(made, rows(place))
    spark.conf.set("spark.sql.exchange.reuse", "false")
    try:
        with pytest.raises(fp.Refused) as refused:
            job.run(until="available")
    finally:
        spark.conf.set("spark.sql.exchange.reuse", "true")
    assert "called_twice" == refused.value.code
    assert "not decided" in refused.value.safe


def test_settings_that_would_hide_a_second_result_are_refused(spark: SparkSession, place: Place) -> None:
    place.say("1")
    job = place.job(spark)
    made = job.map(place.text(job), by_chance, output="n BIGINT", on_bad_record="dead_letter", dead_letters=dead(place))
    job.write(made, rows(place))
    for name, value in ((fork.COMPARES, "false"), ("spark.sql.maxPlanStringLength", "1000")):
        was = spark.conf.get(name)
        spark.conf.set(name, value)
        try:
            with pytest.raises(fp.Refused) as refused:
                job.run(until="available")
        finally:
            spark.conf.set(name, was)  # not `unset`: Spark 4.1's own default is false
        assert "once_needs_settings" == refused.value.code
        assert name in refused.value.what


CHANCE = """
import json, os, random, sys, time
from pathlib import Path
import fencepost as fp

folder, conf = Path(sys.argv[1]), json.loads(sys.argv[2])
met = folder / "met"

def by_chance(line):
    if random.random() < 0.4:
        raise TimeoutError("no answer")
    return (int(line.value),)

def losing(row):
    "Delete the shuffle files that the dead letters are yet to be read from."
    (met / str(row.n // 50)).touch()
    while len(os.listdir(met)) < 2:  # both tasks have read theirs, and no core is left for others
        time.sleep(0.01)
    if not (met / "lost").exists():
        (met / "lost").touch()
        for disk in os.environ["SPARK_LOCAL_DIRS"].split(","):
            for file in Path(disk).rglob("shuffle_*.data"):
                file.unlink(missing_ok=True)
    return row

job = fp.Job("chance", checkpoint=folder / "checkpoint", conf=conf)
lines = job.read(fp.Files(str(folder / "in"), format="text", max_files_per_epoch=2))
numbers = job.map(
    lines, by_chance, output="n BIGINT", on_bad_record="dead_letter",
    dead_letters=fp.SQLite(folder / "dead.db", table="dead_letters", name="z"),  # read after the rows
)
job.write(job.map(numbers, losing, output="n BIGINT"), fp.SQLite(folder / "out.db", table="rows"))
try:
    job.run(until="available")
except fp.Retryable as error:
    print(error)
    job.run(until="available")
"""


def test_each_record_is_in_the_rows_or_in_the_dead_letters_once_through_loss_and_kill(
    place: Place, archives: Path
) -> None:
    """The function fails by chance, so an epoch that runs again has other dead letters. In the first epoch shuffle
    files are lost after the rows were read and before the dead letters are; in the second the driver is killed.
    """
    for file in range(4):
        drop(place.input, "".join(f"{file * 50 + n}\n" for n in range(50)))
    (place.root / "met").mkdir()
    archive = class_archive(archives, "files", FilesWorkload, "jvm")
    # As on a cluster, tasks whose shuffle files were lost run again.
    more = {"spark.master": "local[2]", "spark.stage.maxConsecutiveAttempts": "4"}
    conf = json.dumps({**QUICK, **more, OPTIONS: f"{QUICK[OPTIONS]} -XX:SharedArchiveFile={archive}"})
    command = [sys.executable, "-c", CHANCE, str(place.root), conf]
    said = []
    for fault, code in (("decide.before=kill@2", KILLED), ("", 0)):
        environment = {**os.environ, "FENCEPOST_FAULT": fault, "PYTHONUNBUFFERED": "1"}
        ended = subprocess.run(command, check=False, timeout=240, env=environment, capture_output=True)
        assert code == ended.returncode, ended.stderr.decode()[-4000:]
        said.append(ended.stdout.decode())
    assert said[0].startswith("[spark_failed]")  # it must not go on with half of each result
    good = [row[0] for row in table(place.database, "rows")]
    bad = ids(letters(place))
    assert list(range(200)) == sorted(good + bad)
    assert 0 < len(bad) < 200


@pytest.mark.parametrize("bridge", ["jvm", "foreach_batch"])
def test_a_row_that_the_sink_refuses_is_a_dead_letter_of_its_epoch(
    spark: SparkSession, place: Place, bridge: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Three epochs, the dead letters of `parse` in the same sink, and one decision for each epoch."""
    with closing(sqlite3.connect(place.database)) as database:
        database.execute("CREATE TABLE rows (id INTEGER, word TEXT NOT NULL CHECK (length(word) < 9))")
    place.say('{"id": 1, "word": "a"}\n{"id": 2}', f'nope\n{{"id": 3, "word": "{CANARY}"}}', '{"id": 4, "word": "d"}')
    job = place.job(spark, bridge)
    told: Any = {"on_bad_record": "dead_letter", "dead_letters": dead(place)}
    job.write(job.parse(place.text(job), schema="id BIGINT, word STRING", **told), rows(place), **told)
    job.run(until="available")
    assert [(1, "a"), (4, "d")] == table(place.database, "rows")
    found = {row[2]: row for row in letters(place)}
    source, position, _, error = found[f'{{"id":3,"word":"{CANARY}"}}']
    assert (None, "sink sqlite:rows refused it: CHECK constraint failed: length(word) < 9") == (position, error)
    assert source == found["nope"][0]
    assert {'{"id":2,"word":null}', "nope", f'{{"id":3,"word":"{CANARY}"}}'} == set(found)
    assert "epoch 1: sink sqlite:rows refused 1 rows" in caplog.text
    assert CANARY not in caplog.text + "".join(path.read_text() for path in place.checkpoint.rglob("*.json*"))


def test_rows_of_an_aggregate_may_be_refused_too(spark: SparkSession, place: Place) -> None:
    """Its state is kept once: the branch of the dead letters reads nothing."""
    with closing(sqlite3.connect(place.database)) as database:
        database.execute("CREATE TABLE counts (word TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count < 3))")
    place.say("a b", "a b b", "b c")
    job = place.job(spark)
    words = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
    job.write(words.groupBy("word").count(), place.counts_sink(), on_bad_record="dead_letter", dead_letters=dead(place))
    job.run(until="available")
    assert {"a": 2, "b": 1, "c": 1} == place.counts(), "the row before a refused one stays"
    assert ['{"word":"b","count":3}', '{"word":"b","count":4}'] == sorted(row[2] for row in letters(place))
    assert 1 == len(list((place.checkpoint / "state").iterdir()))


@pytest.mark.parametrize("name", [None, "words"])
def test_a_job_that_is_stuck_on_a_row_gets_dead_letters_and_goes_on(
    spark: SparkSession, place: Place, name: str | None
) -> None:
    with closing(sqlite3.connect(place.database)) as database:
        database.execute("CREATE TABLE counts (word TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count < 3))")

    def job(*, letters: bool = False, **more: Any) -> fp.Job:
        made = fp.Job("words", checkpoint=place.checkpoint, spark=spark, **more)
        words = made.read(fp.Files(place.input, format="text"), name=name)
        aside: dict[str, Any] = {"on_bad_record": "dead_letter", "dead_letters": dead(place)} if letters else {}
        return made.write(words.selectExpr("value AS word").groupBy("word").count(), place.counts_sink(), **aside)

    place.say("a", "b")
    job().run(until="available")
    place.say("b", "b", "c")
    with pytest.raises(fp.FencepostError, match="rows_refused") as refused:
        job().run(until="available")
    assert "on_bad_record='dead_letter'" in refused.value.next
    job(letters=True, allow_sink_changes=True).run(until="available")
    assert {"a": 1, "b": 1, "c": 1} == place.counts()
    assert ['{"word":"b","count":3}'] == [row[2] for row in letters(place)]
    place.say("a")
    job(letters=True).run(until="available")
    assert {"a": 2, "b": 1, "c": 1} == place.counts()


def test_a_write_whose_dead_letters_have_no_place_is_refused(stream: Any, place: Place) -> None:
    for given, code in (
        ({"on_bad_record": "dead_letter"}, "no_dead_letters"),
        ({"dead_letters": dead(place)}, "dead_letters_unused"),
        ({"on_bad_record": "dead_letter", "dead_letters": rows(place)}, "sink_twice"),
    ):
        job = place.job(stream.sparkSession)
        with pytest.raises(fp.Refused) as refused:
            job.write(stream, rows(place), **given)
        assert code == refused.value.code
