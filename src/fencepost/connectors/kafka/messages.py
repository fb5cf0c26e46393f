"""Rows as messages: which column is the key, the value, the headers, the partition, the topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.connectors.kafka.sink import Kafka
from fencepost.connectors.table.database import RowsRefused
from fencepost.connectors.table.deletion import is_deleted
from fencepost.connectors.table.values import in_utc, plain
from fencepost.errors import TargetRefused

_dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


class BadMessage(Exception):
    """A row cannot be turned into a message. Says which step failed, never what a row holds."""

    by_row = True
    """Because of its values? Not if a serializer fails for another reason: it may not reach its registry."""


class Message(NamedTuple):
    """What the client needs to send one."""

    topic: str
    key: bytes | str | None
    value: bytes | str | None
    partition: int
    headers: list[tuple[str, bytes | None]] | None

    @property
    def size(self) -> int:
        """What the broker compares with max.message.bytes: a record batch, format 2, of this message alone."""
        headers = [part for header in self.headers or () for part in header]
        record = 3 + _length(len(self.headers or ())) + sum(map(_size, (self.key, self.value, *headers)))
        return 61 + _length(record) + record


def _size(part: bytes | str | None) -> int:
    size = 0 if part is None else len(part.encode() if isinstance(part, str) else part)
    return _length(size) + size


def _length(number: int) -> int:
    """Of a signed number of variable length: seven bits in a byte, and one for the sign."""
    return max(1, -(-(number.bit_length() + 1) // 7)) if number else 1


def check_columns(sink: Kafka, schema: pa.Schema) -> None:
    """Refuse columns that do not exist or have the wrong type for their purpose."""
    wanted = {
        "key": (sink.key, lambda kind: not types.is_nested(kind), "text, bytes, a number or a time"),
        "value": (sink.value, _is_text_or_bytes, "text or bytes (serialize it in the plan: to_json, to_avro)"),
        "deletes": (sink.deletes, types.is_boolean, "boolean"),
        "headers": (sink.headers, _is_headers, "array<struct<key: string, value: binary>>, as Spark has it"),
        "partition": (sink.partition, types.is_integer, "an integer"),
        "topic_column": (sink.topic_column, types.is_string, "text"),
    }
    for argument, (column, fits, what) in wanted.items():
        if column is None:
            continue
        if column not in schema.names:
            raise TargetRefused(
                "no_such_column",
                f"{argument}={column!r}: the DataFrame has no such column; it has {', '.join(schema.names)}.",
                next=f"Set {argument}=… to a column of the DataFrame.",
            )
        kind = schema.field(column).type
        if not fits(kind):
            raise TargetRefused(
                "column_type",
                f"{argument}={column!r}: the column has type {kind}.",
                next=f"It must be {what}.",
            )


def messages(sink: Kafka, batch: pa.RecordBatch) -> Iterator[Message]:
    """The rows of a batch, in order."""
    for message in zip(
        _topics(sink, batch),
        _keys(sink, batch),
        _values(sink, batch),
        _partitions(sink, batch),
        _headers(sink, batch),
        strict=True,
    ):
        yield Message(*message)


def _topics(sink: Kafka, batch: pa.RecordBatch) -> list[str]:
    if sink.topic_column is None:
        return [str(sink.topic)] * batch.num_rows
    found: list[str | None] = batch.column(sink.topic_column).to_pylist()
    if None in found and sink.topic is None:
        raise BadMessage("it has no topic")
    return [str(sink.topic) if name is None else name for name in found]


def _keys(sink: Kafka, batch: pa.RecordBatch) -> list[bytes | str | None]:
    if sink.key is None:
        return [None] * batch.num_rows
    column = batch.column(sink.key)
    if _is_text_or_bytes(column.type):
        return list(column.to_pylist())
    return [None if value is None else value if isinstance(value, str) else _dump(value) for value in plain(column)]


def _values(sink: Kafka, batch: pa.RecordBatch) -> list[bytes | str | None]:
    """A row to delete has none: a tombstone."""
    if sink.deletes is None:
        return _written(sink, batch)
    try:
        gone = is_deleted(batch, sink.deletes)
    except RowsRefused as error:
        raise BadMessage(str(error)) from None
    if pc.any(pc.and_(gone, pc.is_null(batch.column(sink.key)))).as_py():
        raise BadMessage("it is to be deleted, and has no key")
    written = iter(_written(sink, batch.filter(pc.invert(gone))))
    return [None if is_gone else next(written) for is_gone in gone.to_pylist()]


def _written(sink: Kafka, batch: pa.RecordBatch) -> list[bytes | str | None]:
    if sink.value is not None:
        return list(batch.column(sink.value).to_pylist())
    ours = (sink.headers, sink.partition, sink.topic_column, sink.deletes)
    names = [name for name in batch.schema.names if name not in ours]
    rows = batch.select(names)
    if sink.serializer is not None:
        return [sink.serializer(row) for row in in_utc(rows).to_pylist()]
    columns = map(plain, rows.columns)
    return [_dump(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _partitions(sink: Kafka, batch: pa.RecordBatch) -> list[int]:
    if sink.partition is None:
        return [-1] * batch.num_rows
    return [-1 if number is None else number for number in batch.column(sink.partition).to_pylist()]


def _headers(sink: Kafka, batch: pa.RecordBatch) -> list[Any]:
    if sink.headers is None:
        return [None] * batch.num_rows
    return [
        None if row is None else [(header["key"], header["value"]) for header in row]
        for row in batch.column(sink.headers).to_pylist()
    ]


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_headers(kind: pa.DataType) -> bool:
    if not types.is_list(kind) or not types.is_struct(kind.value_type):
        return False
    return {field.name for field in kind.value_type} == {"key", "value"}
