"""Reading the Parquet files of a table: what runs in tasks, with pyarrow alone.

    slices ──→ row groups that begin in them ──→ columns by name or field id ──→ batches of Spark's types

A column that a file does not have is NULL, or has the value that the table's log says. Never lets a library's error
out: those quote values, and URLs with credentials. Never skips a file that is missing, or not the one in the log.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs, types

from fencepost.errors import LATER, EpochFailed, FencepostError, OperatorNeeded

ID = b"PARQUET:field_id"
"""In the metadata of Arrow's fields: the number by which Iceberg knows a column."""
BATCH_BYTES = 8 << 20
"""About how large a batch becomes, in memory."""
BATCH_ROWS = (1024, 65_536)
"""The fewest and the most rows of a batch."""
REFORM = datetime(1900, 1, 1, tzinfo=UTC)
"""From here on the calendars of old and new Sparks agree, in every time zone."""


@dataclass(frozen=True)
class FileSlice:
    """A part of a Parquet file: the row groups that begin between two of its bytes."""

    path: str
    """A URL, or a path on this machine."""
    bytes: int
    """Of the whole file, as the table's log says."""
    first: int
    end: int
    values: Mapping[str, Any] = field(default_factory=dict)
    """By column: what the log says of all rows of the file."""


@dataclass(frozen=True)
class Shape:
    """How to read the files of a table."""

    table: str
    """For people."""
    schema: pa.Schema
    """The columns as Spark wants them; if the table has field ids, with these in the fields' metadata."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to log in to the object store: see `filesystem`."""
    has_ids: bool = False
    names: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By field id: the names that a column may have in files without ids."""
    log_wins: bool = True
    """Does the log's value of a column count even if the file has the column?"""


@dataclass(frozen=True)
class FilePart:
    """What one task reads."""

    shape: Shape
    slices: Sequence[FileSlice]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, as Spark wants them."""
        for one in self.slices:
            yield from _rows(self.shape, one)


def _rows(shape: Shape, one: FileSlice) -> Iterator[pa.RecordBatch]:
    with _guarded(shape, one, lambda: _open(shape, one)) as parquet:
        columns = Columns(shape, parquet, one.values)
        groups = list(_groups(parquet.metadata, one))
        if not groups:
            return
        size = _batch_rows(parquet.metadata, groups)
        batches = parquet.iter_batches(batch_size=size, row_groups=groups, columns=columns.needed, use_threads=False)
        while (found := _guarded(shape, one, lambda: _next(batches, columns))) is not None:
            yield found


def _open(shape: Shape, one: FileSlice) -> pq.ParquetFile:
    system, path = filesystem(one.path, shape.storage)
    source = system.open_input_file(path)
    if source.size() != one.bytes:
        source.close()
        raise Replaced
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True)


def _next(batches: Iterator[pa.RecordBatch], columns: Columns) -> pa.RecordBatch | None:
    batch = next(batches, None)
    return None if batch is None else columns.conform(batch)


def _groups(metadata: pq.FileMetaData, one: FileSlice) -> Iterator[int]:
    """Each row group begins in one slice of its file, so it is read once."""
    begin = 0
    for number in range(metadata.num_row_groups):
        if one.first <= begin < one.end:
            yield number
        group = metadata.row_group(number)
        begin += sum(group.column(at).total_compressed_size for at in range(group.num_columns))


def _batch_rows(metadata: pq.FileMetaData, groups: Sequence[int]) -> int:
    found = [metadata.row_group(number) for number in groups]
    width = sum(group.total_byte_size for group in found) / max(sum(group.num_rows for group in found), 1)
    fewest, most = BATCH_ROWS
    return max(fewest, min(most, int(BATCH_BYTES / max(width, 1))))


class Replaced(Exception):
    """The file is not the one that the table's log names."""


class Unfit(Exception):
    """A column of the file does not fit the table's; names the column, never a value."""


def _guarded(shape: Shape, one: FileSlice, step: Callable[[], Any]) -> Any:
    """The step's result; our own error for what a library raises."""
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - of a library, whose text may quote a value or a URL
        failed = _failure(f"Data file {one.path.rpartition('/')[2]} of {shape.table}", error)
    raise failed


def _failure(file: str, error: Exception) -> FencepostError:
    if isinstance(error, FileNotFoundError):
        return lost(f"{file} was deleted before it was read")
    if isinstance(error, Replaced):
        return lost(f"{file} was replaced before it was read: its size is not the one in the table's log")
    why = str(error) if isinstance(error, Unfit) else type(error).__name__
    return EpochFailed(
        "table_file_unreadable",
        f"{file} cannot be read: {why}.",
        safe=LATER,
        next="Check that the workers reach the file's store (network, credentials) and that the file is complete, then "
        "start the job again.",
    )


def lost(what: str) -> OperatorNeeded:
    """A file that the table's log names is not there as it was."""
    return OperatorNeeded(
        "table_file_lost",
        f"The table lost a data file that the job still has to read: {what}.",
        safe="Safe: what is decided is complete, or will be finished at the next start; nothing of the lost range was "
        "written.",
        next="Restore the file and start the job again. If it cannot be restored, start a new checkpoint with start=… "
        "after the version that added it. Let VACUUM, orphan removal and lifecycle rules keep files for longer than "
        "your longest outage.",
    )


# --- columns


class Columns:
    """Which columns of one file become which columns of the rows."""

    def __init__(self, shape: Shape, parquet: pq.ParquetFile, values: Mapping[str, Any]) -> None:
        have: pa.Schema = parquet.schema_arrow
        self._match = Match(shape, has_ids=shape.has_ids and any(ID in (one.metadata or {}) for one in have))
        self._calendar = _old_calendar(parquet.metadata.metadata or {})
        self._wanted = list(shape.schema)
        self._schema = shape.schema.remove_metadata()
        self._values = values
        told = set(values) if shape.log_wins else set()
        self._names = [None if one.name in told else self._match.name_in(have, one) for one in self._wanted]
        self.needed = list(dict.fromkeys(name for name in self._names if name is not None))
        """Names of the file's columns that are read."""

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The file's rows as Spark wants the table's."""
        arrays = []
        for want, name in zip(self._wanted, self._names, strict=True):
            if name is None:
                arrays.append(_repeated(self._values.get(want.name), want.type, batch.num_rows))
                continue
            try:
                array = self._match.conform(batch.column(name), batch.schema.field(name), want)
                _check_calendar(array, self._calendar)
            except (pa.ArrowException, NotImplementedError):
                raise Unfit(f"column {want.name} is {batch.schema.field(name).type} in it, not {want.type}") from None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@dataclass(frozen=True)
class Match:
    """Finds columns by id if the file has ids, and otherwise by name; inside of structs, lists and maps too."""

    shape: Shape
    has_ids: bool

    def name_in(self, have: pa.Schema | pa.StructType, want: pa.Field) -> str | None:
        """The name of the column in a file or a struct; None if it is not there."""
        fields: list[pa.Field] = [
            have.field(at) for at in range(len(have) if isinstance(have, pa.Schema) else have.num_fields)
        ]
        if self.has_ids:
            return next((str(one.name) for one in fields if _id(one) == _id(want)), None)
        names = self.shape.names.get(_id(want), ()) if self.shape.has_ids else (want.name,)
        low = {name.lower() for name in names}
        exact = next((str(one.name) for one in fields if one.name in names), None)
        return exact or next((str(one.name) for one in fields if one.name.lower() in low), None)

    def conform(self, array: pa.Array, have: pa.Field, want: pa.Field) -> pa.Array:
        """An array of the wanted type."""
        if types.is_nested(want.type) and types.is_nested(array.type):
            return self._nested(array, have, want)
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if types.is_fixed_size_binary(array.type) and types.is_string(want.type):
            texts = (None if value is None else str(uuid.UUID(bytes=value)) for value in array.to_pylist())
            return pa.array(texts, want.type)
        return array if array.type == want.type else array.cast(want.type)

    def _nested(self, array: pa.Array, have: pa.Field, want: pa.Field) -> pa.Array:
        if not self.has_ids and array.type == want.type:
            return array
        if types.is_struct(want.type):
            parts = [self._part(array, want.type.field(at)) for at in range(want.type.num_fields)]
            return pa.StructArray.from_arrays(parts, fields=list(want.type), mask=array.is_null())
        if types.is_map(want.type):
            keys = self.conform(array.keys, array.type.key_field, want.type.key_field)
            items = self.conform(array.items, array.type.item_field, want.type.item_field)
            return pa.MapArray.from_arrays(_offsets(array), keys, items, type=want.type)
        if not types.is_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        values = self.conform(array.values, array.type.value_field, want.type.value_field)
        return pa.ListArray.from_arrays(_offsets(array), values, type=want.type)

    def _part(self, array: pa.StructArray, want: pa.Field) -> pa.Array:
        name = self.name_in(array.type, want)
        if name is None:
            return pa.nulls(len(array), want.type)
        at = array.type.get_field_index(name)
        return self.conform(array.field(at), array.type.field(at), want)


def _id(one: pa.Field) -> int:
    return int((one.metadata or {}).get(ID, -1))


def _offsets(array: pa.Array) -> pa.Array:
    """Where the lists begin; NULL where there is none. (A mask does not go with a slice.)"""
    begin, end = array.offsets.slice(0, len(array)), array.offsets.slice(len(array), 1)
    return pa.concat_arrays([pc.if_else(array.is_null(), pa.scalar(None, begin.type), begin), end])


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """What the log says, in Python's types; Iceberg has days and microseconds as numbers."""
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, uuid.UUID):
        value = str(value)
    scalar = pa.scalar(value, pa.int32()) if types.is_date(kind) and isinstance(value, int) else pa.scalar(value)
    return pa.repeat(scalar.cast(kind), rows)


# --- calendars: what Sparks before 3 wrote, or later ones in their way, is in another calendar before 1582


def _old_calendar(metadata: Mapping[bytes, bytes]) -> bool:
    version = metadata.get(b"org.apache.spark.version", b"").decode(errors="replace")
    is_old = bool(re.match(r"[0-2]\.|3\.0\.", version))
    return is_old or b"org.apache.spark.legacyDateTime" in metadata or b"org.apache.spark.legacyINT96" in metadata


def _check_calendar(array: pa.Array, is_old: bool) -> None:
    if not is_old or not (types.is_date(array.type) or types.is_timestamp(array.type)):
        return
    least = pc.min(array).cast(pa.timestamp("us")).as_py()
    if least is not None and least < REFORM.replace(tzinfo=None):
        raise Unfit("it has dates before 1900, written by an old Spark in the Julian calendar")


# --- ids: a schema of Spark's, with the numbers by which the table knows its fields


def with_ids(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Schema:
    """Ids from a schema in Spark's JSON, where they are in the metadata, as metadata of Arrow's fields."""
    return pa.schema([_with_id(one, told) for one, told in zip(schema, columns["fields"], strict=True)])


def _with_id(one: pa.Field, told: Mapping[str, Any]) -> pa.Field:
    return one.with_type(_inner(one.type, told["type"])).with_metadata({ID: str(told["metadata"]["id"])})


def _inner(kind: pa.DataType, told: Any) -> pa.DataType:
    if isinstance(told, str):
        return kind
    if told["type"] == "struct":
        return pa.struct([_with_id(kind.field(at), one) for at, one in enumerate(told["fields"])])
    if told["type"] == "array":
        return pa.list_(kind.value_field.with_type(_inner(kind.value_type, told["elementType"])))
    return pa.map_(
        kind.key_field.with_type(_inner(kind.key_type, told["keyType"])),
        kind.item_field.with_type(_inner(kind.item_type, told["valueType"])),
    )


# --- where files are


def filesystem(url: str, storage: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """The store of a file or folder, and the path in it. `storage`: the arguments of pyarrow's `S3FileSystem`.

    Stores other than S3 are used with the credentials that their machine has.
    """
    scheme = urlsplit(url).scheme.lower() if "://" in url or url.startswith("file:") else ""
    if scheme in ("", "file"):
        return fs.LocalFileSystem(), re.sub(r"^file:(//[^/]*)?", "", url)
    if scheme not in ("s3", "s3a", "s3n"):
        found, path = fs.FileSystem.from_uri(url)
        return found, path
    return _s3(tuple(sorted(storage.items()))), url.split("://", 1)[1]


@cache
def _s3(storage: tuple[tuple[str, str], ...]) -> fs.S3FileSystem:
    told: dict[str, Any] = dict(storage)
    for name in ("force_virtual_addressing", "anonymous"):
        if name in told:
            told[name] = told[name] == "true"
    return fs.S3FileSystem(**told)
