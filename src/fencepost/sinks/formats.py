"""Rows as a file: Parquet, JSON lines, CSV. Never buffers a whole epoch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BytesIO
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fencepost.sinks.values import bindable, is_bytes, plain


def write_parquet(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Parquet, in row groups of a useful size however small the batches are."""
    with pa.parquet.ParquetWriter(file, schema) as out:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(b.num_rows for b in waiting) >= 100_000:
                out.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        if waiting:
            out.write_table(pa.Table.from_batches(waiting, schema))


def write_json(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """One object a line."""
    dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    for batch in batches:
        for row in zip(*map(plain, batch.columns), strict=True):
            file.write(dump(dict(zip(schema.names, row, strict=True))).encode() + b"\n")


def write_csv(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """CSV with a header; NULL is empty, empty text is quoted."""
    columns = pa.schema([(field.name, _csv_type(field.type)) for field in schema])
    with pa.csv.CSVWriter(file, columns) as out:
        for batch in batches:
            arrays = [
                array if array.type == field.type else pa.array(_csv_values(array), field.type)
                for array, field in zip(batch.columns, columns, strict=True)
            ]
            out.write_batch(pa.RecordBatch.from_arrays(arrays, schema=columns))


WRITE: Mapping[str, Callable[[IO[bytes], pa.Schema, Iterator[pa.RecordBatch]], None]] = {
    "parquet": write_parquet,
    "json": write_json,
    "csv": write_csv,
}


def _csv_type(kind: pa.DataType) -> pa.DataType:
    simple = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if simple else pa.int64() if pa.types.is_duration(kind) else pa.string()


def _csv_values(array: pa.Array) -> list[Any]:
    return plain(array) if is_bytes(array.type) else bindable(array)


def misfit(name: str, schema: pa.Schema) -> str:
    """Why rows of this schema cannot be written in a format, tried on no rows; "" if they can."""
    twice = sorted({column for column in schema.names if schema.names.count(column) > 1})
    try:
        WRITE[name](BytesIO(), schema, iter(()))
    except (pa.ArrowException, ValueError) as error:
        return f"{name} cannot hold these types: {error}"
    if twice:
        return f"columns {', '.join(map(repr, twice))} come twice"
    return "" if schema.names else "it has no columns"
