"""Rows as Kafka messages: which column is the key, the value, the headers, the partition, the topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from fencepost.errors import TargetRefused
from fencepost.sinks.values import plain

Serializer = Callable[[Mapping[str, Any]], bytes | None]
"""A row as a dict, with Python's own types; None is a tombstone."""

_dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))

SLICE_BYTES = 8 << 20
SLICE_ROWS = 10_000
"""Rows that are handed to the client at once."""


class BadMessage(Exception):
    """A row cannot become a message. Says which step failed, never what a row holds."""


class Message(NamedTuple):
    """What the client is given."""

    topic: str
    key: bytes | str | None
    value: bytes | str | None
    partition: int
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column is what; a column without a name here is part of the JSON value."""

    topic: str | None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    topic_column: str | None = None
    serializer: Serializer | None = None

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that are not there, or of a type that cannot be what they are meant for."""
        wanted = {
            "key": (self.key, lambda kind: not types.is_nested(kind), "text, bytes, a number or a time"),
            "value": (self.value, _is_text_or_bytes, "text or bytes (serialise it in the plan: to_json, to_avro)"),
            "headers": (self.headers, _is_headers, "array<struct<key: string, value: binary>>, as Spark's own"),
            "partition": (self.partition, types.is_integer, "an integer"),
            "topic_column": (self.topic_column, types.is_string, "text"),
        }
        for argument, (column, fits, what) in wanted.items():
            if column is None:
                continue
            if column not in schema.names:
                raise TargetRefused(
                    "no_such_column",
                    f"{argument}={column!r}, but the DataFrame has no such column; it has {', '.join(schema.names)}.",
                    next=f"Name a column of the DataFrame in {argument}=….",
                )
            kind = schema.field(column).type
            if not fits(kind):
                raise TargetRefused(
                    "column_type",
                    f"{argument}={column!r} is of type {kind}.",
                    next=f"It has to be {what}.",
                )

    def messages(self, batch: pa.RecordBatch) -> Iterator[Message]:
        """The rows of a batch, in their order."""
        for message in zip(
            self._topics(batch),
            self._keys(batch),
            self._values(batch),
            self._partitions(batch),
            self._headers(batch),
            strict=True,
        ):
            yield Message(*message)

    def _topics(self, batch: pa.RecordBatch) -> list[str]:
        if self.topic_column is None:
            return [str(self.topic)] * batch.num_rows
        found: list[str | None] = batch.column(self.topic_column).to_pylist()
        if None in found and self.topic is None:
            raise BadMessage("it has no topic")
        return [str(self.topic) if name is None else name for name in found]

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | str | None]:
        if self.key is None:
            return [None] * batch.num_rows
        column = batch.column(self.key)
        if _is_text_or_bytes(column.type):
            return list(column.to_pylist())
        return [None if value is None else value if isinstance(value, str) else _dump(value) for value in plain(column)]

    def _values(self, batch: pa.RecordBatch) -> list[bytes | str | None]:
        if self.value is not None:
            return list(batch.column(self.value).to_pylist())
        ours = (self.headers, self.partition, self.topic_column)
        names = [name for name in batch.schema.names if name not in ours]
        rows = batch.select(names)
        if self.serializer is not None:
            return [self.serializer(row) for row in rows.to_pylist()]
        columns = map(plain, rows.columns)
        return [_dump(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]

    def _partitions(self, batch: pa.RecordBatch) -> list[int]:
        if self.partition is None:
            return [-1] * batch.num_rows
        return [-1 if number is None else number for number in batch.column(self.partition).to_pylist()]

    def _headers(self, batch: pa.RecordBatch) -> list[Any]:
        if self.headers is None:
            return [None] * batch.num_rows
        return [
            None if row is None else [(header["key"], header["value"]) for header in row]
            for row in batch.column(self.headers).to_pylist()
        ]


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Pieces that are small enough to be waited for one by one."""
    rows = min(SLICE_ROWS, max(1, batch.num_rows * SLICE_BYTES // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_headers(kind: pa.DataType) -> bool:
    if not types.is_list(kind) or not types.is_struct(kind.value_type):
        return False
    return {field.name for field in kind.value_type} == {"key", "value"}
