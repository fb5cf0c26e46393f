"""One job, several targets: right after each epoch all of them show the same rows, to the readers people have."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from fencepost_proof.rig.kafka import Broker
from pyiceberg.catalog import load_catalog
from streams import Place
from topics import read_before

from fencepost.cli.check import jobs_of
from fencepost.cli.main import cli

pytestmark = [pytest.mark.spark]

EPOCHS = 5
JOB = """
import fencepost as fp
from pyspark.sql.functions import col

folder, servers, topic = {folder!r}, {servers!r}, {topic!r}
catalog = {{"type": "sql", "uri": f"sqlite:///{{folder}}/catalog.db", "warehouse": f"file://{{folder}}/warehouse"}}
job = fp.Job("instants", checkpoint=f"{{folder}}/checkpoint")
lines = job.read(fp.Files(f"{{folder}}/in", format="text", max_files_per_epoch=1))
job.write(lines, fp.SQLite(f"{{folder}}/out.db", table="lines", name="db"))
job.write(lines, fp.Files(f"{{folder}}/renamed", name="renamed"))
job.write(lines, fp.Files(f"{{folder}}/listed", visible="manifest", name="listed"))
job.write(lines, fp.Delta(f"{{folder}}/delta", name="delta"))
job.write(lines.where(col("value") != "rare"), fp.Delta(f"{{folder}}/rare", name="but-rare"))
job.write(lines, fp.Iceberg("shop.lines", catalog=catalog, name="iceberg"))
job.write(lines, fp.Kafka(topic, servers=servers, value="value", name="kafka"))
"""


def asked(file: Path, *words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["as-of", str(file), "--json", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    (one,) = json.loads(result.stdout)["jobs"]
    return result.exit_code, one


def readers(folder: Path, broker: Broker, spark: Any) -> dict[str, Callable[[dict[str, Any]], list[str]]]:
    """By sink, what a reader of its own kind sees who was told these facts."""

    def files(found: dict[str, Any]) -> list[str]:
        return [value for file in json.loads(found["text"]) for value in pq.read_table(file)["value"].to_pylist()]

    def in_delta(name: str, found: dict[str, Any]) -> list[str]:
        version = int(found["text"].removeprefix("VERSION AS OF "))
        return list(DeltaTable(str(folder / name), version=version).to_pyarrow_table()["value"].to_pylist())

    def in_iceberg(found: dict[str, Any]) -> list[str]:
        settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        with closing(load_catalog("default", **settings)) as catalog:
            snapshot = int(found["text"].removeprefix("FOR VERSION AS OF "))
            table = catalog.load_table("shop.lines").scan(snapshot_id=snapshot).to_arrow()
        return list(table["value"].to_pylist())

    def in_kafka(found: dict[str, Any]) -> list[str]:
        (topic,) = json.loads(found["text"])
        options = {"subscribe": topic, "kafka.bootstrap.servers": broker.servers, "endingOffsets": found["text"]}
        frame = spark.read.format("kafka").options(**options, **{"kafka.isolation.level": "read_committed"}).load()
        by_spark = [row.value.decode() for row in frame.select("value").collect()]
        by_consumer = [message.value().decode() for message in read_before(broker.servers, found["facts"]["ends"])]
        assert sorted(by_spark) == sorted(by_consumer)
        return by_spark

    def in_sqlite(_: dict[str, Any]) -> list[str]:
        with closing(sqlite3.connect(folder / "out.db")) as connection:
            return [value for (value,) in connection.execute("SELECT value FROM lines")]

    return {
        "db": in_sqlite,
        "renamed": files,
        "listed": files,
        "delta": lambda found: in_delta("delta", found),
        "but-rare": lambda found: in_delta("rare", found),
        "iceberg": in_iceberg,
        "kafka": in_kafka,
    }


def test_every_epoch_of_every_target_is_read_back(spark: Any, broker: Broker, topic: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.input.mkdir()
    file = tmp_path / "job.py"
    file.write_text(JOB.format(folder=str(tmp_path), servers=broker.servers, topic=topic))
    said = [["zero", "one"], ["two"], ["rare"], ["three", "four", "five"], ["six"]]
    (job,) = jobs_of(file)
    query = job.start()
    try:
        for words in said[:3]:
            place.say("\n".join(words))
            query.processAllAvailable()
        code, running = asked(file)  # while it runs
        assert (0, 2, True) == (code, running["epoch"], running["exact"]), running
    finally:
        job.stop()
    for words in said[3:]:
        place.say("\n".join(words))
    (job,) = jobs_of(file)
    job.run(until="available")

    look = readers(tmp_path, broker, spark)
    texts: dict[str, list[str]] = {name: [] for name in look}
    for epoch in range(EPOCHS):
        expected = sorted(word for words in said[: epoch + 1] for word in words)
        code, found = asked(file, "--epoch", str(epoch))
        is_newest = epoch == EPOCHS - 1
        assert (0 if is_newest else 1, EPOCHS - 1, [*sorted(look)]) == (code, found["newest"], [*found["sinks"]])
        assert is_newest == found["sinks"]["db"]["exact"]
        for name, sink in found["sinks"].items():
            if name == "db" and not is_newest:
                continue
            wanted = [word for word in expected if word != "rare"] if name == "but-rare" else expected
            assert (True, wanted) == (sink["exact"], sorted(look[name](sink))), (name, epoch, sink)
            texts[name].append(sink["text"])
    # No epoch is another's: only where nothing was written is the instant the same.
    del texts["db"]
    assert [4, 5, 5, 5, 5, 5] == [len(set(found)) for _, found in sorted(texts.items())]
    assert [0, 1, 1, 3, 4] == [
        asked(file, "--epoch", str(epoch))[1]["sinks"]["but-rare"]["wrote"] for epoch in range(EPOCHS)
    ]
