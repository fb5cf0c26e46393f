"""Delta and Iceberg tables as sources of real Spark jobs: exact, replayable, and with words when they cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import table_job
from fencepost_proof.kill.scene import end_group
from releases import SPARK
from streams import table
from table_streams import Fed, FedDelta, FedIceberg

import fencepost as fp
from fencepost import faults
from fencepost.errors import BadConfig, CheckpointRefused, FencepostError, OperatorNeeded
from fencepost.runtime.checks import look
from fencepost.spark import plan

pytestmark = pytest.mark.spark

PATIENCE_S = 180


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With both tables, which have one row."""
    for fed in table_job.both(tmp_path):
        fed.add(0)
    return tmp_path


def numbers(folder: Path) -> dict[str, list[int]]:
    return {name: sorted(row[0] for row in table(folder / f"{name}.db", "rows")) for name in ("delta", "iceberg")}


def each(*rows: int) -> dict[str, list[int]]:
    return {name: list(rows) for name in ("delta", "iceberg")}


def test_two_tables_are_read_exactly_and_compaction_is_not_read(spark: Any, folder: Path) -> None:
    job = table_job.job_of(folder, spark=spark)
    report = job.check()
    assert (fp.Guarantee.EXACTLY_ONCE, True) == (report.asked, report.holds)
    found = look(job._launch(looks=True), probes=True)
    probed = [note for note in found.notes if "probed" in note]
    assert 2 == len([note for note in probed if "(1 row) was the same" in note])
    job.run(until="available")
    assert each(0) == numbers(folder)
    for fed in table_job.both(folder):
        fed.add(1, 2)
        fed.compact()
        fed.add(3)
    table_job.job_of(folder, spark=spark).run(until="available")
    assert each(0, 1, 2, 3) == numbers(folder)


def test_a_running_job_reads_what_is_added(spark: Any, folder: Path) -> None:
    job = table_job.job_of(folder, spark=spark)
    job.start()
    try:
        wait_for(lambda: each(0) == seen(folder))
        for fed in table_job.both(folder):
            fed.add(1)
            fed.compact()
            fed.add(2)
        wait_for(lambda: each(0, 1, 2) == seen(folder))
    finally:
        job.stop()


def seen(folder: Path) -> dict[str, list[int]]:
    try:
        return numbers(folder)
    except Exception:  # noqa: BLE001 - not there yet
        return {}


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)


@pytest.mark.since(4, 2)
def test_a_limit_makes_more_epochs(spark: Any, tmp_path: Path) -> None:
    fed = FedDelta(tmp_path / "delta")
    for number in range(5):
        fed.add(number)
    job = fp.Job("limited", checkpoint=tmp_path / "checkpoint", spark=spark)
    rows = job.read(replace(fed.source, max_files_per_epoch=2))
    job.write(rows, fp.SQLite(tmp_path / "out.db", table="rows"))
    job.run(until="available")
    assert list(range(5)) == sorted(row[0] for row in table(tmp_path / "out.db", "rows"))
    assert 3 == len([path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit()])


@pytest.mark.skipif(SPARK >= (4, 2), reason="it has limits")
def test_an_older_spark_refuses_a_limit_in_words(spark: Any, folder: Path) -> None:
    job = fp.Job("limited", checkpoint=folder / "other", spark=spark)
    with pytest.raises(BadConfig) as caught:
        job.read(fp.Delta(folder / "delta", max_files_per_epoch=2))
    assert "needs_newer_spark" == caught.value.code


TYPES = pa.schema(
    [
        ("k", pa.int64()),
        ("short", pa.int16()),
        ("float", pa.float32()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(20, 4)),
        ("list", pa.list_(pa.struct([("a", pa.int32())]))),
        ("map", pa.map_(pa.string(), pa.list_(pa.string()))),
        ("struct", pa.struct([("day", pa.date32()), ("price", pa.decimal128(5, 1))])),
    ]
)
NOON = datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
FULL = {
    "k": 1,
    "short": -300,
    "float": 0.5,
    "bytes": b"\x00\xff",
    "day": date(1582, 10, 1),
    "time": NOON,
    "local": NOON.replace(tzinfo=None),
    "price": Decimal("-1234.5678"),
    "list": [{"a": 1}, None],
    "map": {"k": ["x", None]},
    "struct": {"day": date(2026, 1, 31), "price": Decimal("1.5")},
}


def test_spark_sees_the_values_that_were_written(spark: Any, tmp_path: Path) -> None:
    empty = dict.fromkeys(FULL) | {"k": 2}
    rows = pa.Table.from_pylist([FULL | {"map": list(FULL["map"].items())}, empty], TYPES)  # type: ignore[attr-defined]
    delta = FedDelta(tmp_path / "delta", options={"partition_by": ["day"]})
    delta.write(rows)
    wide = [one.with_type(pa.int32()) if one.name == "short" else one for one in TYPES]
    iceberg = FedIceberg(tmp_path / "iceberg", schema=pa.schema(wide))
    iceberg.table.append(rows.set_column(8, "list", pa.array([FULL["list"], []], TYPES.field("list").type)))
    for name, fed in (("delta", delta), ("iceberg", iceberg)):
        job = fp.Job(f"types {name}", checkpoint=tmp_path / f"checkpoint-{name}", spark=spark)
        frame = job.read(fed.source)
        # Without a zone, and by number: Python would show Spark's times in the machine's zone.
        shown = frame.withColumn("time", frame.time.cast("timestamp").cast("double").cast("decimal(20,6)"))
        query = shown.writeStream.format("memory").queryName(f"types_{name}").trigger(availableNow=True).start()
        query.awaitTermination()
        first, second = spark.table(f"types_{name}").orderBy("k").collect()
        assert FULL | {"time": Decimal(str(NOON.timestamp()))} == first.asDict(recursive=True)
        nothing = empty | ({"list": []} if name == "iceberg" else {})  # so the library writes it
        assert nothing == second.asDict(recursive=True)


def test_credentials_are_in_nothing_that_spark_prints(spark: Any, folder: Path) -> None:
    delta, iceberg = table_job.both(folder)
    job = fp.Job("secret", checkpoint=folder / "other", spark=spark)
    hushed = {**iceberg.properties, "s3.secret-access-key": "canary-7d1f"}
    frames = [
        job.read(fp.Delta(delta.folder, storage_options={"AWS_SECRET_ACCESS_KEY": "canary-7d1f"})),
        job.read(fp.Iceberg(iceberg.identifier, catalog=hushed)),
    ]
    for number, frame in enumerate(frames):
        assert "fencepost_" in frame._jdf.queryExecution().analyzed().toString()
        assert "canary" not in frame._jdf.queryExecution().toString()
        (source,) = plan.sources_of(frame)
        assert "canary" not in str(source.options)
        job.write(frame, fp.SQLite(folder / f"{number}.db", table="rows", name=f"rows {number}"))
    job.run(until="available")
    written = [path for path in (folder / "other").rglob("*") if path.is_file()]
    assert written
    assert [] == [path for path in written if b"canary" in path.read_bytes()]


def test_another_table_is_refused_by_the_checkpoint(spark: Any, folder: Path) -> None:
    table_job.job_of(folder, spark=spark).run(until="available")
    for fed in table_job.both(folder):
        fed.make_again()
    with pytest.raises(CheckpointRefused) as caught:
        table_job.job_of(folder, spark=spark).run(until="available")
    assert "sources_changed" == caught.value.code


def test_a_table_may_be_moved(spark: Any, folder: Path) -> None:
    """It is known by its id, not by its path."""
    table_job.job_of(folder, spark=spark).run(until="available")
    (folder / "delta").rename(folder / "moved")
    job = fp.Job("tables", checkpoint=folder / "checkpoint", spark=spark)
    _, iceberg = table_job.both(folder)
    for name, source in (("delta", fp.Delta(folder / "moved")), ("iceberg", iceberg.source)):
        job.write(job.read(source), fp.SQLite(folder / f"{name}.db", table="rows", name=name))
    FedDelta(folder / "moved").add(1)
    job.run(until="available")
    assert {"delta": [0, 1], "iceberg": [0]} == numbers(folder)


@dataclass
class Spoiled:
    """What somebody did to a table, and the word for it."""

    how: Callable[[Fed], object]
    code: str


SPOILED = {
    "rewritten": Spoiled(lambda fed: fed.remove(0), "table_rewritten"),
    "history": Spoiled(lambda fed: (fed.add(1), fed.add(2), fed.forget_history()), "table_history_lost"),
    "file": Spoiled(lambda fed: (fed.add(1), fed.data_files()[-1].unlink()), "table_file_lost"),
}


@pytest.mark.parametrize("name", sorted(SPOILED))
def test_what_stops_a_stream_reaches_the_user_in_words(spark: Any, tmp_path: Path, name: str) -> None:
    fed = FedDelta(tmp_path / "delta")
    fed.add(0)

    def run() -> None:
        job = fp.Job("stopped", checkpoint=tmp_path / "checkpoint", spark=spark)
        job.write(job.read(fed.source), fp.SQLite(tmp_path / "out.db", table="rows"))
        job.run(until="available")

    run()
    known = set(fed.data_files())
    if name == "file":
        fed.add(1)
        (new,) = set(fed.data_files()) - known
        new.unlink()
    else:
        SPOILED[name].how(fed)
    with pytest.raises(OperatorNeeded) as caught:
        run()
    assert SPOILED[name].code == caught.value.code
    assert "stopped" == caught.value.where.job
    assert [0] == sorted(row[0] for row in table(tmp_path / "out.db", "rows"))


def test_a_start_that_cannot_be_is_refused_in_words(spark: Any, folder: Path) -> None:
    job = fp.Job("far", checkpoint=folder / "other", spark=spark)
    job.write(job.read(fp.Delta(folder / "delta", start=77)), fp.SQLite(folder / "out.db", table="rows"))
    with pytest.raises(FencepostError) as caught:
        job.run(until="available")
    assert (BadConfig, "bad_start") == (type(caught.value), caught.value.code)


def test_a_source_that_only_has_our_name_is_not_believed(spark: Any, tmp_path: Path) -> None:
    """Spark's own rate source under it would be another class."""
    assert "fencepost_delta" == plan._kind("fencepost_delta", "PythonDataSourceV2")
    assert "RateStreamProvider fencepost_delta" != plan._kind("fencepost_delta", "RateStreamProvider")
    for name in ("fencepost_delta", "Fencepost_Delta"):
        kind = plan._kind(name, "SomethingElse")
        assert plan.PlanSource(kind, {}).replayable(()) is None
    assert plan.PlanSource(plan._kind("fencepost_delta2", "PythonDataSourceV2"), {}).replayable(()) is None


# --- kills


@pytest.fixture
def feeder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that fills and compacts both tables all the time."""
    command = [sys.executable, table_job.__file__, "feed", str(folder)]
    running = subprocess.Popen(command, env=environment(), start_new_session=True)
    yield running
    end_group(running)


def environment(fault: str = "") -> dict[str, str]:
    helpers = str(Path(table_job.__file__).parent)
    return {**os.environ, faults.ARM: fault, "PYTHONPATH": os.pathsep.join([helpers, *filter(None, sys.path)])}


def run(folder: Path, fault: str = "", *more: str) -> int:
    """An exit code, or minus the signal that killed it."""
    command = [sys.executable, table_job.__file__, "read", str(folder), *more]
    with (folder / "job.log").open("ab") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env=environment(fault), start_new_session=True)
        try:
            return started.wait(PATIENCE_S)
        finally:
            end_group(started)


@pytest.mark.long
def test_kills_lose_and_double_nothing_while_another_process_appends_and_compacts(
    folder: Path, feeder: subprocess.Popen[bytes]
) -> None:
    kills = {fault: run(folder, fault, "forever") for fault in FAULTS}
    assert dict.fromkeys(FAULTS, -signal.SIGKILL) == kills
    (folder / table_job.ENOUGH).touch()
    assert 0 == feeder.wait(PATIENCE_S)
    assert 0 == run(folder)
    fed = [sorted(row["k"] for row in rows_in(one)) for one in table_job.both(folder)]
    assert fed == [list(range(len(one))) for one in fed]  # the feeder did what it should
    assert each(*fed[0]) == numbers(folder)


FAULTS = ("decide.before=kill", "decide.after=kill@2", "commit.before=kill@2", "complete.before=kill@2")


def rows_in(fed: Fed) -> list[dict[str, Any]]:
    if isinstance(fed, FedDelta):
        return fed.table.to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]
    assert isinstance(fed, FedIceberg)
    return fed.table.scan().to_arrow().to_pylist()  # type: ignore[no-any-return]
