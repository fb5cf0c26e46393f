"""Files that were written, as readers see them: Spark's own, and others with their defaults."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

import fencepost as fp
from fencepost.testing import SinkDriver

pytestmark = pytest.mark.spark

AS_RFC_4180 = {"header": "true", "multiLine": "true", "escape": '"'}
"""What Spark has to be told about CSV in which a value may hold a line break, a quote or a backslash."""


def written(folder: Path, kind: str, table: pa.Table) -> Path:
    sink = fp.Files(folder / "out", format=kind)
    driver = SinkDriver(sink, folder)
    driver.start(table.schema)
    driver.run(0, table)
    [file] = fp.list_published(folder / "out")
    return file


@pytest.mark.parametrize(
    ("schema", "values"), [("v STRING", ["a", None, "b", None]), ("v INT", [1, None, 3]), ("v DOUBLE", [None, 0.5])]
)
def test_a_null_in_the_only_column_of_a_csv_is_a_row(
    spark: Any, tmp_path: Path, schema: str, values: list[Any]
) -> None:
    file = written(tmp_path, "csv", pa.table({"v": values}))
    assert [row.v for row in spark.read.schema(schema).csv(str(file), header=True).collect()] == values
    with file.open(newline="") as lines:
        texts = [row["v"] for row in csv.DictReader(lines)]
    assert texts == ["" if value is None else str(value) for value in values]
    assert pyarrow.csv.read_csv(file).num_rows == len(values)


def test_a_file_of_nothing_but_nulls_has_all_its_rows(spark: Any, tmp_path: Path) -> None:
    nulls = pa.table({"v": pa.nulls(3, pa.string())})
    files = {kind: str(written(tmp_path / kind, kind, nulls)) for kind in ("csv", "json", "parquet")}
    assert spark.read.schema("v STRING").csv(files["csv"], header=True).count() == 3
    assert spark.read.schema("v STRING").json(files["json"]).count() == 3
    assert spark.read.parquet(files["parquet"]).count() == 3


def test_any_text_comes_back_as_it_was(spark: Any, tmp_path: Path) -> None:
    texts = ["a line\nbreak", "\r\n", 'a "quote"', "a backslash\\", " blanks ", "a, b", "ä"]
    table = pa.table({"text": texts, "number": range(len(texts))})
    read = spark.read.schema("text STRING, number INT").options(**AS_RFC_4180)
    found = read.csv(str(written(tmp_path / "csv", "csv", table))).orderBy("number").collect()
    assert [row.text for row in found] == texts
    found = spark.read.schema("text STRING, number INT").json(str(written(tmp_path / "json", "json", table))).collect()
    assert [row.text for row in found] == texts
