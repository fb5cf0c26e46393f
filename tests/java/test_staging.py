"""The rows of an epoch, staged on a store that all machines reach."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from buckets import reach
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.s3_door import Answer, S3Door
from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.functions import col, expr, raise_error, when

pytestmark = pytest.mark.spark

DENIED = Answer(HTTPStatus.FORBIDDEN, "AccessDenied")

SMALL, LARGE = 10, 60_000
"""Rows of a partition that the driver stages, and of one that its task does."""


class Told:
    """In Python's place: what it is told of an epoch."""

    def __init__(self) -> None:
        self.files: list[dict[str, Any]] = []

    def epoch(self, epoch: int, text: str) -> str:
        assert epoch == 0
        self.files = json.loads(text)["files"]
        return ""

    class Java:
        """For py4j."""

        implements = ("fencepost.Epochs",)


class Staged:
    """A folder of staged files, and how an epoch gets there."""

    def __init__(self, spark: Any, folder: str, tmp_path: Path) -> None:
        self.spark, self.folder, self.tmp_path = spark, folder, tmp_path
        self.copies = tmp_path / "copies"

    @contextmanager
    def told(self) -> Iterator[Told]:
        told, sink = Told(), self.spark._jvm.fencepost.EpochSink
        ensure_callback_server_started(self.spark.sparkContext._gateway)
        sink.register("token", told)
        try:
            yield told
        finally:
            sink.unregister("token")

    def epoch(self, *partitions: int, broken: bool = False) -> list[dict[str, Any]]:
        """One epoch with so many rows in each of its partitions; what Python hears of it."""
        source = self.tmp_path / "source"
        source.mkdir()
        for rows in partitions:  # a file a partition, see the setting below
            (source / f"{rows}.csv").write_text("".join(f"{rows},{n:>100}\n" for n in range(rows)))
        frame = self.spark.readStream.schema("rows INT, n STRING").csv(str(source))
        last = (col("rows") == LARGE) & (expr("trim(n)").cast("int") == LARGE - 1)
        shown = when(last, raise_error(expr("'broken'"))).otherwise(col("n")) if broken else col("n")
        options = {"token": "token", "staged": self.folder, "local": str(self.copies)}
        before = self.spark.conf.get("spark.sql.files.openCostInBytes")
        self.spark.conf.set("spark.sql.files.openCostInBytes", str(1 << 27))
        try:
            with self.told() as told:
                writer = frame.select("rows", shown.alias("n")).writeStream.format("fencepost.EpochSink")
                writer = writer.options(**options).option("checkpointLocation", str(self.tmp_path / "checkpoint"))
                query = writer.trigger(availableNow=True).start()
                query.awaitTermination()
        finally:
            self.spark.conf.set("spark.sql.files.openCostInBytes", before)
        return told.files

    def names(self) -> set[str]:
        path = self.spark._jvm.org.apache.hadoop.fs.Path(self.folder)
        system = path.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
        text = self.spark._jvm.fencepost.Listing.below(system, path)
        return {line.split("\t")[0] for line in text.splitlines()}

    def read(self, name: str) -> bytes:
        path = self.spark._jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{name}")
        file = path.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf()).open(path)
        try:
            return bytes(file.readAllBytes())
        finally:
            file.close()


@pytest.fixture(params=["bucket", "hdfs_folder"])
def staged(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Staged:
    """On each store."""
    return Staged(spark, f"{request.getfixturevalue(request.param)}/staged/1", tmp_path)


def test_rows_reach_the_store_and_those_of_small_partitions_this_machine_too(staged: Staged) -> None:
    files = staged.epoch(SMALL, SMALL + 1, LARGE)
    assert [LARGE, 2 * SMALL + 1] == [file["rows"] for file in files]
    assert {file["file"] for file in files} == staged.names()
    for file in files:
        data = staged.read(file["file"])
        assert (file["bytes"], file["sum"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert file["rows"] == pa.ipc.open_stream(data).read_all().num_rows
    together = files[-1]["file"]
    assert [together] == [copy.name for copy in staged.copies.iterdir()], "a task's file is not the driver's to keep"
    assert (staged.copies / together).read_bytes() == staged.read(together)


@pytest.mark.parametrize("width", [1 << 20, 300_000])
def test_a_batch_of_wide_rows_is_as_small_as_others(spark: Any, tmp_path: Path, width: int) -> None:
    """A batch is in the memory of a task, and later of the driver: 128 rows of 4 MB must not be one."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "lines").write_text("x\n" * 40)
    frame = spark.readStream.text(str(tmp_path / "source")).select(expr(f"repeat(value, {width})").alias("wide"))
    with Staged(spark, "", tmp_path).told() as told:
        writer = frame.writeStream.format("fencepost.EpochSink").trigger(availableNow=True)
        writer = writer.option("token", "token").option("staged", f"file://{tmp_path}/staged")
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    [file] = told.files
    data = (tmp_path / "staged" / file["file"]).read_bytes()
    assert (file["bytes"], file["sum"]) == (len(data), hashlib.sha256(data).hexdigest())
    batches = list(pa.ipc.open_stream(data))
    assert 40 == sum(batch.num_rows for batch in batches) == file["rows"]
    assert max(batch.nbytes for batch in batches) <= (5 << 20) + width


def test_files_are_in_the_order_of_the_partitions(spark: Any, tmp_path: Path) -> None:
    staged = Staged(spark, f"file://{tmp_path}/staged", tmp_path)
    with staged.told() as told:
        frame = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=120_000, numPartitions=4).load()
        rows = frame.selectExpr("spark_partition_id() AS task", "value", "lpad(value, 200, '.') AS text")
        writer = rows.where("task = 1 OR value < 40").writeStream.format("fencepost.EpochSink")
        writer = writer.option("token", "token").option("staged", staged.folder)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    assert [10, 30_000, 20] == [file["rows"] for file in told.files]
    found = [pa.ipc.open_stream(staged.read(file["file"])).read_all() for file in told.files]
    places = [(row["task"], row["value"]) for table in found for row in table.select(["task", "value"]).to_pylist()]
    assert places == sorted(places)


def test_a_task_that_breaks_leaves_no_file(staged: Staged) -> None:
    with pytest.raises(StreamingQueryException, match="broken"):
        staged.epoch(LARGE, broken=True)
    assert set() == staged.names()


def test_a_file_on_an_object_store_is_one_request(spark: Any, s3: S3, tmp_path: Path) -> None:
    with S3Door(s3.endpoint) as door:
        staged = Staged(spark, f"{reach(spark, door)}/staged/1", tmp_path)
        door.reset()
        assert 2 == len(staged.epoch(SMALL, LARGE))
        assert {"PUT": 2} == dict(door.count())


def test_a_task_that_breaks_puts_no_half_file(spark: Any, s3: S3, tmp_path: Path) -> None:
    """Closing the stream would, for the moment until it is deleted."""
    with S3Door(s3.endpoint) as door:
        staged = Staged(spark, f"{reach(spark, door)}/staged/1", tmp_path)
        door.reset()
        with pytest.raises(StreamingQueryException, match="broken"):
            staged.epoch(LARGE, broken=True)
        assert {} == dict(door.count())


def test_a_task_whose_file_did_not_arrive_fails(spark: Any, s3: S3, tmp_path: Path) -> None:
    with S3Door(s3.endpoint) as door:
        staged = Staged(spark, f"{reach(spark, door)}/staged/1", tmp_path)
        door.answer(DENIED, when=lambda request: request.method == "PUT")
        with pytest.raises(StreamingQueryException, match="AccessDenied"):
            staged.epoch(LARGE)


@pytest.mark.parametrize("partitions", [1, 64, 1024, 10_000, 1_000_000])
def test_what_tasks_send_to_the_driver_is_bounded_however_many_they_are(spark: Any, partitions: int) -> None:
    jvm = spark._jvm
    owner = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("fencepost.EpochSink$Epoch")
    [rule] = [method for method in owner.getDeclaredMethods() if method.getName() == "inlineBytesPerTask"]
    rule.setAccessible(True)
    arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = jvm.java.lang.Long.valueOf(4 << 20), jvm.java.lang.Integer.valueOf(partitions)
    each = rule.invoke(None, arguments)
    assert partitions * each <= 64 << 20
    assert each >= 64 << 10 or partitions > 1024, "a file costs more than some tens of KB do"
