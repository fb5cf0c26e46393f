"""The data files of an Iceberg table: Parquet that says itself what a commit needs to know.

    rows ─► divided by partition ─► waiting ─► row groups ─► files, rolled at the target size
                                       └ at most `WAITING_BYTES`, whatever the number of partitions

A file's key-value metadata (`fencepost`) has the schema, the partition and what Parquet does not count; its statistics
are in its footer. So any later process can commit it. Never has a value of a row in a name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID, NullOrder, SortDirection, SortField
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, NestedField, TimestampType, TimestamptzType, TimeType

from fencepost.connectors.iceberg.columns import stored_schema
from fencepost.connectors.iceberg.location import DataLocation, sync
from fencepost.connectors.iceberg.partition import Division, decoded, encoded, transformed

WAITING_BYTES = 64 << 20
"""Rows in memory that are not in a file yet."""
AT_ONCE_BYTES = 16 << 20
"""Rows that are divided by partition together."""
OPEN_FILES = 64
"""With more partitions than this in one epoch, a partition may get several files."""
OURS = b"fencepost"
"""The key of what a file says about itself."""
FORMAT = 1


class NotOurs(Exception):
    """A file that says nothing about itself, or nothing that this table knows."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table wants its data files."""

    metadata: TableMetadata
    target_bytes: int

    @property
    def schema(self) -> Schema:
        return self.metadata.schema()

    @property
    def spec(self) -> PartitionSpec:
        return self.metadata.spec()

    @property
    def row_group_rows(self) -> int:
        return self._number(TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT)

    @property
    def row_group_bytes(self) -> int:
        """In memory. Smaller where files are to be small, so that they do not become much larger than wanted."""
        name, default = (
            TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES,
            TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT,
        )
        return min(WAITING_BYTES, self._number(name, default), max(self.target_bytes, 1 << 20))

    @property
    def options(self) -> dict[str, Any]:
        """For the Parquet writer."""
        codec = self._codec
        level = self._number(TableProperties.PARQUET_COMPRESSION_LEVEL, 0) or None
        return {
            "compression": codec,
            "compression_level": level if codec != "none" and pa.Codec.supports_compression_level(codec) else None,
            "data_page_size": self._number(
                TableProperties.PARQUET_PAGE_SIZE_BYTES, TableProperties.PARQUET_PAGE_SIZE_BYTES_DEFAULT
            ),
            "dictionary_pagesize_limit": self._number(
                TableProperties.PARQUET_DICT_SIZE_BYTES, TableProperties.PARQUET_DICT_SIZE_BYTES_DEFAULT
            ),
            "write_batch_size": self._number(
                TableProperties.PARQUET_PAGE_ROW_LIMIT, TableProperties.PARQUET_PAGE_ROW_LIMIT_DEFAULT
            ),
            "store_decimal_as_integer": True,  # as the format wants them
            "store_schema": False,  # other readers than Arrow's own do not need it
        }

    @property
    def _codec(self) -> str:
        name, default = TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT
        codec = self.metadata.properties.get(name, default).lower()
        return "none" if codec == "uncompressed" else codec

    def _number(self, name: str, default: int) -> int:
        return int(self.metadata.properties.get(name, default))

    @property
    def problems(self) -> list[str]:
        """Properties that we cannot follow, for people."""
        try:
            codec = self._codec
            if codec != "none" and not pa.Codec.is_available(codec):
                return [f"its data files are to be compressed with {codec}, which is not available here"]
            _, _, _ = self.options, self.row_group_rows, self.row_group_bytes
            compute_statistics_plan(self.schema, dict(self.metadata.properties))
        except ValueError:  # also what Arrow says of an unknown codec
            return ["its properties write.parquet.* or write.metadata.metrics.* have values that we do not understand"]
        return []


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file, as ours and as the library has it."""

    path: str
    bytes: int
    rows: int
    entry: DataFile


# --- writing


@dataclass(slots=True)
class _OpenFile:
    path: str
    partition: list[str | None]
    record: Record
    stream: Any
    parquet: pq.ParquetWriter
    closing: ExitStack
    groups: int = 0
    is_sorted: bool = True
    nans: Counter[int] = field(default_factory=Counter)


class DataFileWriter:
    """Writes rows, which have the table's own types, to files; nobody reads them before a commit names them."""

    def __init__(self, layout: Layout, place: DataLocation, name: Callable[[int], str]) -> None:
        self._layout = layout
        self._place = place
        self._name = name
        """The path of the nth file."""
        self._schema = layout.schema
        self._stored = stored_schema(self._schema)
        self._division = Division(layout.spec, self._schema)
        self._kind = layout.spec.partition_type(self._schema)
        self._waiting: dict[tuple[str | None, ...], list[pa.Table]] = {}
        self._records: dict[tuple[str | None, ...], Record] = {}
        self._bytes: Counter[tuple[str | None, ...]] = Counter()
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._paths: list[str] = []
        self._written: list[WrittenFile] = []

    def add_all(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write everything, durably; on failure, remove what there is of it."""
        try:
            for table in _gathered(batches, self._stored, min(AT_ONCE_BYTES, self._layout.row_group_bytes)):
                self._add(table)
            return self._finish()
        except BaseException:
            self._abort()
            raise

    def _add(self, rows: pa.Table) -> None:
        for record, part in self._division.parts(rows):
            key = tuple(encoded(record, self._kind))
            self._records[key] = record
            self._waiting.setdefault(key, []).append(part)
            self._bytes[key] += part.nbytes
            if self._bytes[key] >= self._layout.row_group_bytes:
                self._flush(key)
        while self._bytes.total() > WAITING_BYTES:
            [(largest, _)] = self._bytes.most_common(1)
            self._flush(largest)

    def _flush(self, key: tuple[str | None, ...]) -> None:
        """A row group, or several, from what waits of a partition."""
        rows = pa.concat_tables(self._waiting.pop(key))
        del self._bytes[key]
        rows, is_sorted = self._sorted(rows)
        file = self._open.pop(key, None) or self._begin(key)
        self._open[key] = file  # at the end: the first is the one that waits longest
        file.parquet.write_table(rows, row_group_size=self._layout.row_group_rows)
        file.groups += 1
        file.is_sorted = file.is_sorted and is_sorted
        file.nans.update(_nans(rows, self._schema))
        if file.stream.tell() >= self._layout.target_bytes:
            self._end(key)
        while len(self._open) > OPEN_FILES:
            self._end(next(iter(self._open)))

    def _sorted(self, rows: pa.Table) -> tuple[pa.Table, bool]:
        """In the table's order, if it has one that Arrow can follow."""
        order = self._layout.metadata.sort_order()
        if order.is_unsorted:
            return rows, False
        try:
            keys = [key for one in order.fields for key in _sort_keys(rows, self._schema, one)]
            names = [str(number) for number in range(len(keys))]
            directions = [(name, direction) for name, (_, direction) in zip(names, keys, strict=True)]
            places = pc.sort_indices(pa.table([array for array, _ in keys], names), sort_keys=directions)
        except (NotImplementedError, pa.ArrowException):  # an order is a wish, not a rule
            return rows, False
        return rows.take(places), True

    def _begin(self, key: tuple[str | None, ...]) -> _OpenFile:
        path = self._name(len(self._paths))
        self._paths.append(path)
        with ExitStack() as closing:
            stream = closing.enter_context(self._place.create(path))
            parquet = pq.ParquetWriter(stream, self._stored, **self._layout.options)
            return _OpenFile(path, list(key), self._records[key], stream, parquet, closing.pop_all())

    def _end(self, key: tuple[str | None, ...]) -> None:
        file = self._open.pop(key)
        is_sorted = file.is_sorted and file.groups == 1
        facts = {
            "format": FORMAT,
            "schema": self._schema.schema_id,
            "spec": self._layout.spec.spec_id,
            "partition": file.partition,
            "order": self._layout.metadata.default_sort_order_id if is_sorted else UNSORTED_SORT_ORDER_ID,
            "nans": {str(field_id): count for field_id, count in sorted(file.nans.items())},
        }
        with file.closing:
            file.parquet.add_key_value_metadata({OURS: json.dumps(facts)})
            file.parquet.close()
            size = file.stream.tell()
        found = file.parquet.writer.metadata
        said = _FileFacts(self._schema, file.record, facts)
        entry = _entry(self._place.of(file.path), size, found, said, self._layout.metadata.properties)
        self._written.append(WrittenFile(file.path, size, found.num_rows, entry))

    def _finish(self) -> list[WrittenFile]:
        for key in list(self._waiting):
            self._flush(key)
        for key in list(self._open):
            self._end(key)
        sync([self._place.of(one.path) for one in self._written], self._place.io)
        return self._written

    def _abort(self) -> None:
        for file in self._open.values():
            with suppress(Exception), file.closing:
                file.parquet.close()
        with suppress(Exception):
            self._place.delete(self._paths)


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most: int) -> Iterator[pa.Table]:
    """Small batches together: dividing them one by one would cost more than writing them."""
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        some.append(batch)
        size += batch.nbytes
        if size >= most:
            yield pa.Table.from_batches(some, schema)
            some, size = [], 0
    if any(batch.num_rows for batch in some):
        yield pa.Table.from_batches(some, schema)


def _sort_keys(rows: pa.Table, schema: Schema, one: SortField) -> Iterator[tuple[pa.Array, str]]:
    """NULL comes where the order says; NaN is greater than every number."""
    array = transformed(rows, schema, one)
    direction = "ascending" if one.direction is SortDirection.ASC else "descending"
    yield array.is_valid(), "ascending" if one.null_order is NullOrder.NULLS_FIRST else "descending"
    if types.is_floating(array.type):
        yield pc.is_nan(array), direction
    yield array, direction


def _nans(rows: pa.Table, schema: Schema) -> Iterator[int]:
    """The id of a column for each NaN in it: readers take a file without a count for one without NaN."""
    for one, column in zip(schema.fields, rows.columns, strict=True):
        for field_id, array in _floats(one, column):
            yield from [field_id] * (pc.sum(pc.is_nan(array)).as_py() or 0)


def _floats(one: NestedField, column: pa.ChunkedArray) -> Iterator[tuple[int, pa.ChunkedArray]]:
    if types.is_floating(column.type):
        yield one.field_id, column
    elif types.is_struct(column.type):
        for place, child in enumerate(one.field_type.fields):  # type: ignore[attr-defined]
            yield from _floats(child, pc.struct_field(column, [place]))


# --- what the library has to know about a file


def described(path: str, size: int, place: DataLocation, metadata: TableMetadata) -> WrittenFile:
    """A file of ours, from what it says itself; `NotOurs` if that is nothing that the table knows."""
    try:
        with place.io.new_input(place.of(path)).open() as stream:
            found = pq.read_metadata(stream)
        facts = json.loads((found.metadata or {})[OURS])
        schema = next(one for one in metadata.schemas if one.schema_id == facts["schema"])
        kind = metadata.specs()[facts["spec"]].partition_type(schema)
        record = decoded(facts["partition"], kind)
        entry = _entry(place.of(path), size, found, _FileFacts(schema, record, facts), metadata.properties)
    except (pa.ArrowInvalid, KeyError, StopIteration, TypeError, ValueError) as error:
        raise NotOurs(type(error).__name__) from None
    return WrittenFile(path, size, found.num_rows, entry)


@dataclass(frozen=True, slots=True)
class _FileFacts:
    """What a file says about itself, beside its footer."""

    schema: Schema
    record: Record
    plain: Mapping[str, Any]
    """As it is in the file."""


def _entry(
    location: str, size: int, found: pq.FileMetaData, facts: _FileFacts, properties: Mapping[str, str]
) -> DataFile:
    statistics = _statistics(found, facts.schema, properties).to_serialized_dict()
    statistics["nan_value_counts"] = _nan_counts(facts.plain["nans"], facts.schema, statistics["value_counts"])
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=facts.record,
        file_size_in_bytes=size,
        sort_order_id=facts.plain["order"] or None,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
    entry.spec_id = facts.plain["spec"]
    return entry


def _statistics(found: pq.FileMetaData, schema: Schema, properties: Mapping[str, str]) -> DataFileStatistics:
    plan = compute_statistics_plan(schema, dict(properties))
    paths = (found.schema.column(place).path for place in range(found.num_columns))
    ids = dict(zip(paths, parquet_path_to_id_mapping(schema).values(), strict=True))
    try:
        return data_file_statistics_from_parquet_metadata(found, plan, ids)
    except (OverflowError, ValueError):  # a time that Python cannot hold: no bounds for such columns
        times = (DateType, TimeType, TimestampType, TimestamptzType)
        counts = MetricsMode(MetricModeTypes.COUNTS)
        plan = {
            field_id: replace(one, mode=counts) if isinstance(one.iceberg_type, times) else one
            for field_id, one in plan.items()
        }
        return data_file_statistics_from_parquet_metadata(found, plan, ids)


def _nan_counts(given: Mapping[str, int], schema: Schema, counted: Mapping[int, int]) -> dict[int, int]:
    """For every column of numbers that can be NaN and is counted at all."""
    floats = {one.field_id for one in _all_floats(schema.fields)}
    return {field_id: given.get(str(field_id), 0) for field_id in sorted(floats) if field_id in counted}


def _all_floats(fields: Iterable[NestedField]) -> Iterator[NestedField]:
    for one in fields:
        if str(one.field_type) in {"float", "double"}:
            yield one
        elif one.field_type.is_struct:
            yield from _all_floats(one.field_type.fields)  # type: ignore[attr-defined]
