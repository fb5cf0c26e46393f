"""Tables of ours in the hands of their own engines: Spark 4.2 with Delta's package, Spark 4.1 with Iceberg's runtime.

Each Spark is laid beside .venv and runs in a process that does not know fencepost. It reads every epoch by the words
that `fencepost as-of` prints, then maintains the table and adds a row; after that our next epoch has to go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import engine
import pyarrow as pa
import pytest
from fencepost_proof.rig.jars import DELTA_CLIENT, ICEBERG_CLIENT, JarSet, fetch
from fencepost_proof.targets import catalog_of

from fencepost.connectors.delta.sink import Delta
from fencepost.connectors.iceberg.sink import Iceberg
from fencepost.protocol.records import Handle
from fencepost.testing.sink_driver import SinkDriver

pytestmark = [pytest.mark.long, pytest.mark.heavy]

ROOT = Path(__file__).parents[3]
PATIENCE_S = 900
"""The first time a Spark is installed and jars are downloaded."""
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("day", pa.date32()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("word", pa.string()),
        ("data", pa.binary()),
        ("ratio", pa.float64()),
        ("flag", pa.bool_()),
        ("one", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("many", pa.list_(pa.int64())),
        ("names", pa.map_(pa.string(), pa.int64())),
    ]
)
MORE = SCHEMA.append(pa.field("more", pa.string()))


def row(k: int, version: int = 0) -> dict[str, Any]:
    if k % 5 == 4:  # nothing in it but its key and its partition
        return {"k": k, "day": date(2026, 11, 1 + k % 3)}
    return {
        "k": k,
        "day": date(2026, 11, 1 + k % 3),
        "amount": Decimal(f"{k}.{version:02d}"),
        "at": datetime(2026, 11, 17, 12, k % 60, 1, 234567, tzinfo=UTC),
        "word": f"w%{k}/ü {version}",
        "data": bytes([k % 256, 0, 255]),
        "ratio": k / 8,
        "flag": k % 2 == 0,
        "one": {"a": k, "b": None},
        "many": [k, None, version],
        "names": [("x", k), ("y", None)],
    }


def rows(*keys: int, version: int = 0, schema: pa.Schema = SCHEMA) -> pa.Table:
    more = {"more": "m"} if "more" in schema.names else {}
    return pa.Table.from_pylist([row(k, version) | more for k in keys], schema)


@dataclass
class Table:
    """One of ours, and what each epoch has to look like."""

    sink: Any
    name: str
    """As a statement names it."""
    epochs: Sequence[pa.Table]
    expected: Sequence[pa.Table]
    mode: Any = "append"

    def write(self, folder: Path) -> list[str]:
        """All epochs but the last; for each, what stands behind the table's name to read it."""
        handles: dict[int, Handle] = {}
        for epoch, table in enumerate(self.epochs[:-1]):  # a driver for each: the columns may change
            driver = self._driver(folder, epoch, table)
            handles[epoch] = driver.run(epoch, table)
            driver.session.close()
        return [driver.as_of(epoch, handles).text for epoch in handles]

    def write_last(self, folder: Path) -> None:
        epoch = len(self.epochs) - 1
        driver = self._driver(folder, epoch, self.epochs[-1])
        driver.run(epoch, self.epochs[-1])
        driver.session.close()

    def _driver(self, folder: Path, epoch: int, table: pa.Table) -> SinkDriver:
        driver = SinkDriver(self.sink, folder, writer=epoch + 1, held=epoch - 1 if epoch else None)  # type: ignore[arg-type]
        driver.start(table.schema, self.mode)
        return driver


def tables_of(make: Callable[..., Any], called: Callable[[str], str], partition_by: str) -> list[Table]:
    first, second, third = rows(0, 1, 2, 3, 4), rows(5, 6, 7), rows(8, 9)
    wide = rows(8, 9, schema=MORE)
    changed = rows(1, 4, 10, version=1)
    left = rows(0, 2, 3)
    return [
        Table(
            make("added", partition_by=partition_by),
            called("added"),
            (first, second, third),
            (first, pa.concat_tables([first, second]), pa.concat_tables([first, second, third])),
        ),
        Table(
            make("wider", schema="add_columns"),
            called("wider"),
            (first, wide, rows(10, schema=MORE)),
            (
                first,
                pa.concat_tables([first, wide], promote_options="default"),
                pa.concat_tables([first, wide, rows(10, schema=MORE)], promote_options="default"),
            ),
        ),
        Table(
            make("merged", key="k", unique_key=True),
            called("merged"),
            (first, changed, rows(11)),
            (first, pa.concat_tables([left, changed]), pa.concat_tables([left, changed, rows(11)])),
            "update",
        ),
        Table(
            make("whole", mode="replace"),
            called("whole"),
            (first, second, third),
            (first, second, third),
            "complete",
        ),
    ]


def shown(table: pa.Table) -> list[Any]:
    """As the engine prints it: maps are dictionaries."""
    maps = [item.name for item in table.schema if pa.types.is_map(item.type)]
    found = [one | {name: dict(one[name]) for name in maps if one[name] is not None} for one in table.to_pylist()]
    return engine.table(found)


@dataclass
class Engine:
    """A Spark with the format's own package."""

    release: str
    jars: JarSet
    conf: dict[str, str]

    def run(self, statements: Sequence[str]) -> list[Any]:
        setup = subprocess.run([ROOT / "scripts/setup", self.release], check=False, capture_output=True, text=True)
        assert not setup.returncode, setup.stderr
        conf = {
            "spark.jars": ",".join(map(str, fetch(self.jars))),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            **self.conf,
        }
        told = json.dumps({"conf": conf, "statements": list(statements)})
        where = {**os.environ, "PYTHONPATH": str(ROOT / f".{self.release}"), "TZ": "UTC"}
        command = [sys.executable, str(engine.__file__), told]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, env=where)
        lines = [line for line in done.stdout.splitlines() if line.startswith(engine.START)]
        assert lines, done.stderr[-4000:]
        found = json.loads(lines[0].removeprefix(engine.START))
        assert found["spark"].startswith(f"{self.release[5]}.{self.release[6]}."), found["spark"]
        return list(found["answers"])


def check(ours: list[Table], folder: Path, other: Engine, maintain: Callable[[Table], Iterator[str]]) -> None:
    """Every epoch as it was; then their maintenance and a row of their own; then an epoch of ours on top."""
    asked = [(table, epoch, text) for table in ours for epoch, text in enumerate(table.write(folder))]
    reads = [select(table, text) for table, _, text in asked]
    changes = [statement for table in ours for statement in maintain(table)]
    answers = other.run([*reads, *changes])
    for (table, epoch, text), answer in zip(asked, answers, strict=False):
        assert text, (table.name, epoch)
        assert shown(table.expected[epoch]) == answer, (table.name, text)
    for table in ours:
        table.write_last(folder)
    newest = other.run([select(table) for table in ours])
    for table, answer in zip(ours, newest, strict=True):
        theirs = [] if table.mode == "complete" else [one for one in answer if one["k"] == 1000]
        assert (1 if table.mode != "complete" else 0) == len(theirs), table.name
        assert shown(table.expected[-1]) == [one for one in answer if one not in theirs], table.name


def select(table: Table, as_of: str = "") -> str:
    return f"SELECT * FROM {table.name} {as_of}"  # noqa: S608 - ours


def insert(table: Table) -> str:
    return f"INSERT INTO {table.name} (k, day) VALUES (1000, DATE '2026-11-01')"  # noqa: S608 - ours


def test_delta_s_own_engine_reads_every_epoch_and_writes_beside_us(tmp_path: Path) -> None:
    def make(name: str, **settings: Any) -> Delta:
        return Delta(tmp_path / "lake" / name, name=name, **settings)

    def maintain(table: Table) -> Iterator[str]:
        yield f"OPTIMIZE {table.name}"
        yield insert(table)
        yield f"VACUUM {table.name}"

    conf = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    ours = tables_of(make, lambda name: f"delta.`{tmp_path}/lake/{name}`", "day")
    check(ours, tmp_path, Engine("spark42", DELTA_CLIENT, conf), maintain)


def test_iceberg_s_own_engine_reads_every_epoch_and_writes_beside_us(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path) | {"name": "lake"}

    def make(name: str, **settings: Any) -> Iceberg:
        return Iceberg(f"shop.{name}", catalog=catalog, name=name, **settings)

    def maintain(table: Table) -> Iterator[str]:
        short = table.name.removeprefix("lake.")
        yield f"CALL lake.system.rewrite_data_files(table => '{short}', options => map('rewrite-all', 'true'))"
        yield insert(table)
        yield f"CALL lake.system.expire_snapshots(table => '{short}', older_than => now(), retain_last => 1)"

    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{tmp_path / 'catalog.db'}",
        "spark.sql.catalog.lake.warehouse": f"file://{tmp_path / 'warehouse'}",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
    }
    ours = tables_of(make, lambda name: f"lake.shop.{name}", "bucket(4, k)")
    check(ours, tmp_path, Engine("spark41", ICEBERG_CLIENT, conf), maintain)


def test_a_row_that_the_engine_does_not_see_or_sees_twice_is_noticed() -> None:
    """The sabotaged twin of the comparison."""
    table = rows(0, 1, 4)
    assert shown(table) == shown(pa.concat_tables([table.slice(2), table.slice(0, 2)]))
    assert shown(table) != shown(table.slice(1))
    assert shown(table) != shown(pa.concat_tables([table, table.slice(0, 1)]))
    assert shown(table) != shown(rows(0, 1, 4, version=1))
