"""Rows that replace the rows with their key: copy on write, one data file at a time.

    the epoch's keys ─► which files may have them (bounds) ─► which do (key columns only) ─► those are written again
                                                                                              without such rows
    the epoch's rows ─► files of their own

The library's own way builds an expression with every key, reads every match into memory, and turns NULL into an empty
list where a list holds structs. This one holds the keys and a few batches. Never compares values, so NULL and NaN in
them are no question.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.io.pyarrow import _read_all_delete_files, pyarrow_to_schema
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from fencepost.connectors.iceberg.columns import exact, retyped, stored_schema, stored_type
from fencepost.connectors.table.database import BadValue, RowsRefused
from fencepost.connectors.table.values import as_grouped

ROWS_AT_ONCE = 1 << 16
_ORDERED = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, DecimalType, StringType)
"""Types of which every writer has the same idea what is smaller."""


class Overwrite(_OverwriteFiles):
    """Looks for the files to remove in every manifest. The library looks only where their partitions can be, by an
    expression that cannot hold NaN: it fails on a table that is partitioned by a number in which there is one.
    """

    def _build_delete_files_partition_predicate(self) -> None:
        self.delete_by_predicate(AlwaysTrue())


class Keys:
    """The keys of an epoch, and which rows have one of them."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        self._columns = [_comparable(column) for column in columns]
        self._values = [column.unique() for column in self._columns]
        self._codes: list[pa.Array] = []
        codes = pc.index_in(self._columns[0], self._values[0])
        for column, values in zip(self._columns[1:], self._values[1:], strict=True):
            pairs = _paired(codes, column, values)
            self._codes.append(pairs.unique())
            codes = pc.index_in(pairs, self._codes[-1])

    def has(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Which rows have one of the keys."""
        comparable = [_comparable(column) for column in columns]
        codes = pc.index_in(comparable[0], self._values[0])
        for column, values, known in zip(comparable[1:], self._values[1:], self._codes, strict=True):
            codes = pc.index_in(_paired(codes, column, values), known)
        return codes.is_valid()

    def between(self, place: int, lower: Any, upper: Any) -> pa.Array:
        """Which keys lie between two values, in one of their columns."""
        column = self._columns[place]
        above = pc.greater_equal(column, pa.scalar(lower, column.type)) if lower is not None else None
        below = pc.less_equal(column, pa.scalar(upper, column.type)) if upper is not None else None
        return above if below is None else below if above is None else pc.and_(above, below)

    def ends(self, place: int) -> tuple[Any, Any]:
        """The smallest and the largest value in one of the columns."""
        ends = pc.min_max(self._columns[place]).as_py()
        return ends["min"], ends["max"]


def _paired(codes: Any, column: Any, values: Any) -> Any:
    """Two numbers as one; NULL if one of the values is unknown."""
    numbers = pc.cast(pc.index_in(column, values), pa.int64())
    return pc.add(pc.multiply(pc.cast(codes, pa.int64()), len(values)), numbers)


def _comparable(column: Any) -> Any:
    """Keys as Spark groups by them, in types that Arrow can look up."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_comparable(chunk) for chunk in column.chunks])
    return as_grouped(column.storage if isinstance(column.type, pa.BaseExtensionType) else column)


# --- which files


def files_to_rewrite(table: Table, keys: Keys, names: Sequence[str]) -> Iterator[DataReader]:
    """The data files that hold one of the keys."""
    schema = table.schema()
    columns = [schema.find_field(name) for name in names]
    only_keys = Schema(*columns)
    for task in _tasks(table, keys, columns):
        if not _may_have(task.file, keys, columns):
            continue
        reader = DataReader(table, task)
        if any(pc.any(keys.has(batch.columns)).as_py() for batch in reader.batches(only_keys)):
            yield reader


def _tasks(table: Table, keys: Keys, columns: Sequence[NestedField]) -> list[FileScanTask]:
    try:
        return list(table.scan(row_filter=_range(keys, columns)).plan_files())
    except ValueError:
        raise RowsRefused(EQUALITY_DELETES) from None


EQUALITY_DELETES = (
    "it has equality deletes, which we cannot apply when rows are replaced: rewrite its data files first (compaction)"
)


def has_equality_deletes(table: Table) -> bool:
    """Rows that other engines removed by their values."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else ()
    return any(
        entry.data_file.content is DataFileContent.EQUALITY_DELETES
        for manifest in manifests
        if manifest.content is ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    )


def live_files(table: Table) -> Iterator[DataFile]:
    """All data files of the table."""
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        if manifest.content is ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file


def _range(keys: Keys, columns: Sequence[NestedField]) -> BooleanExpression:
    """From the smallest key to the largest: manifests without any of them are not even read."""
    found: BooleanExpression = AlwaysTrue()
    for place, one in enumerate(columns):
        if isinstance(one.field_type, IntegerType | LongType | DateType | StringType):
            low, high = keys.ends(place)
            term = Reference(one.name)
            found = And(found, And(GreaterThanOrEqual(term=term, value=low), LessThanOrEqual(term=term, value=high)))
    return found


def _may_have(file: DataFile, keys: Keys, columns: Sequence[NestedField]) -> bool:
    """By the file's own bounds: is there a key of which every column lies in them?"""
    found = None
    for place, one in enumerate(columns):
        if not isinstance(one.field_type, _ORDERED):
            continue
        lower, upper = (_bound(bounds, one) for bounds in (file.lower_bounds, file.upper_bounds))
        if (inside := keys.between(place, lower, upper)) is not None:
            found = inside if found is None else pc.and_(found, inside)
    return found is None or bool(pc.any(found).as_py())


def _bound(bounds: dict[int, bytes] | None, one: NestedField) -> Any:
    bound = (bounds or {}).get(one.field_id)
    assert isinstance(one.field_type, PrimitiveType), "keys are single values"
    return None if bound is None else from_bytes(one.field_type, bound)


# --- reading a file exactly


@dataclass(frozen=True, slots=True)
class DataReader:
    """The rows of one data file as the table sees them: columns by id, without rows that were deleted by position."""

    table: Table
    task: FileScanTask

    @property
    def file(self) -> DataFile:
        return self.task.file

    def batches(self, schema: Schema) -> Iterator[pa.RecordBatch]:
        """Some columns, in the table's own types."""
        if self.file.file_format is not FileFormat.PARQUET:
            raise RowsRefused(f"it has data files in {self.file.file_format}, of which we cannot replace rows")
        removed = self._removed()
        with self.table.io.new_input(self.file.file_path).open() as stream:
            parquet = pq.ParquetFile(stream)
            there = self._there(parquet.schema_arrow)
            names = [there[one.field_id].name for one in schema.fields if one.field_id in there]
            start = 0
            for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=names):
                places = pa.array(range(start, start + batch.num_rows), pa.int64())
                start += batch.num_rows
                rows = self._resolved(batch, schema, there)
                yield rows if removed is None else rows.filter(pc.invert(pc.is_in(places, value_set=removed)))

    def _removed(self) -> pa.Array | None:
        """The places of rows that other engines removed."""
        found = _read_all_delete_files(self.table.io, [self.task]).get(self.file.file_path)
        return (
            None if not found else pa.chunked_array([chunk for one in found for chunk in one.chunks]).cast(pa.int64())
        )

    def _there(self, schema: pa.Schema) -> dict[int, NestedField]:
        """The columns of the file, by id: its own ids, or those that the table gives to its names."""
        mapping = self.table.metadata.name_mapping() or self.table.schema().name_mapping
        try:
            found = pyarrow_to_schema(
                schema, mapping, downcast_ns_timestamp_to_us=True, format_version=self.table.metadata.format_version
            )
        except ValueError:
            raise RowsRefused("it has data files whose columns have no ids and no known names") from None
        return {one.field_id: one for one in found.fields}

    def _resolved(self, batch: pa.RecordBatch, schema: Schema, there: dict[int, NestedField]) -> pa.RecordBatch:
        target = stored_schema(schema)
        columns = []
        for one, item in zip(schema.fields, target, strict=True):
            have = there.get(one.field_id)
            if have is None:
                columns.append(self._missing(one, item.type, batch.num_rows))
                continue
            array = batch.column(have.name)
            array = retyped(array, _renamed(array.type, have.field_type, one.field_type))
            try:
                columns.append(retyped(exact(array, item.type), item.type))
            except (pa.ArrowException, ValueError):
                raise RowsRefused(
                    f"a data file has values of column {one.name!r} that cannot be kept exactly"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=target)

    def _missing(self, one: NestedField, kind: pa.DataType, rows: int) -> pa.Array:
        """NULL, or what the partition says: files that came from Hive do not have its columns."""
        spec = self.table.specs()[self.file.spec_id]
        for place, part in enumerate(spec.fields):
            if part.source_id == one.field_id and isinstance(part.transform, IdentityTransform):
                value = self.file.partition[place]
                plain = value.bytes if isinstance(value, uuid.UUID) else value
                repeated = pa.repeat(pa.scalar(plain, getattr(kind, "storage_type", kind)), rows)
                return retyped(exact(repeated, kind), kind)
        return pa.nulls(rows, kind)


def _renamed(kind: pa.DataType, have: IcebergType, want: IcebergType) -> pa.DataType:
    """The same layout, in which fields have the names that the table gives to their ids now."""
    if types.is_struct(kind) and isinstance(have, StructType) and isinstance(want, StructType):
        ids = {one.name: one for one in have.fields}
        wanted = {one.field_id: one for one in want.fields}
        return pa.struct([_renamed_field(place, item, ids, wanted) for place, item in enumerate(kind)])
    if types.is_map(kind) and isinstance(have, MapType) and isinstance(want, MapType):
        return pa.map_(
            kind.key_field.with_type(_renamed(kind.key_type, have.key_type, want.key_type)),
            kind.item_field.with_type(_renamed(kind.item_type, have.value_type, want.value_type)),
        )
    if types.is_list(kind) and isinstance(have, ListType) and isinstance(want, ListType):
        return pa.list_(kind.value_field.with_type(_renamed(kind.value_type, have.element_type, want.element_type)))
    return kind


def _renamed_field(place: int, item: pa.Field, ids: dict[str, NestedField], wanted: dict[int, NestedField]) -> pa.Field:
    have = ids.get(item.name)
    want = wanted.get(have.field_id) if have is not None else None
    if have is None or want is None:
        return item.with_name(f"\0{place}")  # no longer in the table
    return item.with_name(want.name).with_type(_renamed(item.type, have.field_type, want.field_type))


def key_columns(batch: pa.RecordBatch, schema: Schema, key: Sequence[str]) -> list[pa.Array]:
    """The keys of rows, in the table's own types."""
    try:
        return [exact(batch.column(name), stored_type(schema.find_field(name).field_type)) for name in key]
    except (pa.ArrowException, ValueError):  # these quote the value
        raise BadValue("a key has a value that the table's column cannot hold exactly") from None
