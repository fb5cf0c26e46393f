"""What a start leaves in a user's own session, and in its JVM: nothing that `fencepost check` does not name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from buckets import reach
from fencepost_proof.rig.s3 import S3
from streams import Place

import fencepost as fp
from fencepost.runtime.checks import look
from fencepost.spark import scan, spark_session

pytestmark = pytest.mark.spark


def found_in(spark: Any) -> dict[str, str]:
    """What somebody else could notice: by the name that `check` has for it, or by one that it has for nothing."""
    context = spark.sparkContext
    java, gateway = spark._jvm, spark._jsc.sc()
    found = dict(spark.conf.getAll)
    found |= {f"hadoop {name}": value for name, value in pairs(spark._jsc.hadoopConfiguration().iterator())}
    found |= {f"context {name}": value for name, value in context.getConf().getAll()}
    for where, properties in (("JVM", java.java.lang.System.getProperties()), ("thread", gateway.getLocalProperties())):
        found |= {f"{where} {name}": str(properties.getProperty(name)) for name in properties.stringPropertyNames()}
    loggers = java.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getLoggers()
    found |= {f"log level of {name}": str(loggers[name].getLevel()) for name in loggers}
    return found


def pairs(entries: Any) -> list[tuple[str, str]]:
    found = []
    while entries.hasNext():
        entry = entries.next()
        found.append((str(entry.getKey()), str(entry.getValue())))
    return found


def lines(job: fp.Job, place: Place) -> None:
    job.write(place.text(job), fp.SQLite(place.database, table="lines"))


def counts(job: fp.Job, place: Place) -> None:
    job.write(place.text(job).groupBy("value").count(), fp.SQLite(place.database, table="lines", key="value"))


def branches_that_may_fail(job: fp.Job, place: Place) -> None:
    rows = place.text(job)
    for name, sign in {"few": "<", "many": ">="}.items():
        some = rows.selectExpr("value", f"value <> '' AND 100 div length(value) {sign} 50 AS is_{name}")
        job.write(some, fp.SQLite(place.database, table=name, name=name))
    assert scan.settings(job._launch().scans)


def dead_letters(job: fp.Job, place: Place) -> None:
    dead = fp.SQLite(place.database, table="dead", name="dead")
    rows = job.map(
        place.text(job), lambda row: (row.value,), output="v STRING", on_bad_record="dead_letter", dead_letters=dead
    )
    job.write(rows, fp.SQLite(place.database, table="lines"))


def keyed_state(job: fp.Job, place: Place) -> None:
    def number(record: Any, state: Any) -> Any:
        return (record.value,), (1,)

    step = fp.map_with_state(place.text(job), by="value", state="n BIGINT", output="value STRING")
    job.write(step(number), fp.SQLite(place.database, table="lines"))


JOBS: Mapping[str, tuple[Callable[[fp.Job, Place], None], dict[str, Any]]] = {
    "lines": (lines, {}),
    "lines by foreachBatch": (lines, {"bridge": "foreach_batch"}),
    "counts": (counts, {}),
    "counts on the heap": (counts, {"state": fp.FileSystemState()}),
    "branches that may fail": (branches_that_may_fail, {}),
    "dead letters": (dead_letters, {}),
    "keyed state": (keyed_state, {}),
    "lines in a bucket": (lines, {}),
}


@pytest.mark.parametrize("kind", JOBS)
def test_check_names_all_that_a_start_leaves_in_a_session_and_nothing_else(
    spark: Any, place: Place, kind: str, request: pytest.FixtureRequest
) -> None:
    theirs = spark.newSession()
    theirs.conf.set("spark.sql.shuffle.partitions", "2")
    build, options = JOBS[kind]
    if "bucket" in kind:
        s3: S3 = request.getfixturevalue("s3")
        options = {**options, "checkpoint": f"{reach(spark, s3)}/{uuid.uuid4().hex[:8]}"}
        for name, value in spark.conf.getAll.items():
            if name.startswith("fs.s3a.bucket."):
                theirs.conf.set(name, value)
    place.say("a b", "c")
    before = found_in(theirs)
    job = place.job(theirs, **options)
    build(job, place)
    named = {one.name: one.value for one in look(job._launch(looks=True)).settings if "stays" in one.origin}
    job.start().processAllAvailable()
    job.stop()
    changed = {name: value for name, value in found_in(theirs).items() if before.get(name) != value}
    assert (options.get("bridge") != "foreach_batch") is (named.pop("jar", None) == spark_session.JAR.name)
    # What an earlier test has set in the one JVM is not set again.
    levels = {name for name in named if name.startswith("log level") and before.get(name) == named[name]}
    assert {name: value for name, value in named.items() if name not in levels} == changed


def test_in_a_session_of_ours_nothing_of_it_is_named(spark: Any, place: Place) -> None:
    place.say("a b")
    job = place.job(spark)
    lines(job, place)
    launch = job._launch(looks=True)
    assert [one.name for one in look(launch).settings if "stays" in one.origin]
    launch.made = True
    assert [] == [one.name for one in look(launch).settings if "stays" in one.origin]
