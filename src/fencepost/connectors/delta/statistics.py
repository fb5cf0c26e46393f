"""What the log says about a data file so that readers can skip it: counts, and bounds of each column's values.

    {"numRecords": 3, "minValues": {"id": 1, "s": {"x": 4}}, "maxValues": {…}, "nullCount": {"id": 0, …}}

A bound that is wrong hides rows from readers, one that is missing costs time. So whatever is not certain is left out:
lists, maps, columns with NaN, decimals that a reader may take for a double, texts that cannot be rounded up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from fencepost.connectors.table.values import is_text

LETTERS = 32
"""A text is cut after so many characters."""
LAST = "\U0010ffff"
"""Greater than whatever text was cut off, unless that begins with the same."""
CERTAIN_DIGITS = 15
"""Decimals with more digits may be rounded by readers that take JSON's numbers for doubles."""
COLUMNS = 32
"""The default of `delta.dataSkippingNumIndexedCols`."""


@dataclass(frozen=True, slots=True)
class Skipping:
    """For which columns the table wants statistics."""

    first: int = COLUMNS
    """So many from the left, counted without their parents; -1: all."""
    names: frozenset[str] | None = None
    """If given, only these, and what is below them."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Skipping:
        """As the table's properties say; what they do not say clearly is not collected."""
        listed = properties.get("delta.dataSkippingStatsColumns")
        if listed is not None:
            return cls(-1, frozenset(name.strip().strip("`") for name in listed.split(",")))
        try:
            return cls(int(properties.get("delta.dataSkippingNumIndexedCols", COLUMNS)))
        except ValueError:
            return cls(0)

    def wants(self, number: int, path: tuple[str, ...]) -> bool:
        if self.names is not None:
            return any(".".join(path[:depth]) in self.names for depth in range(1, len(path) + 1))
        return self.first < 0 or number < self.first


def statistics_of(found: pq.FileMetaData, with_nan: frozenset[str], skipping: Skipping) -> str:
    """The log's text for a data file, from its footer. `with_nan`: columns with NaN, which a footer does not say."""
    smallest: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for number, (place, path, kind) in enumerate(_leaves(found.schema.to_arrow_schema())):
        if path is None or not skipping.wants(number, path):
            continue
        parts = [found.row_group(group).column(place) for group in range(found.num_row_groups)]
        counts = [part.statistics.null_count if _counts(part.statistics) else None for part in parts]
        if None not in counts:
            _put(nulls, path, sum(filter(None, counts)))
        if path[0] not in with_nan and (len(path) == 1 or not types.is_floating(kind)):
            low, high = _bounds(parts, kind)
            if low is not None:
                _put(smallest, path, low)
            if high is not None:
                _put(greatest, path, high)
    text = {"numRecords": found.num_rows, "minValues": smallest, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(text, ensure_ascii=False, allow_nan=False)


def columns_with_nan(batch: pa.RecordBatch) -> Iterator[str]:
    """Readers disagree on where NaN is between the other numbers."""
    for item, array in zip(batch.schema, batch.columns, strict=True):
        if types.is_floating(item.type) and pc.any(pc.is_nan(array)).as_py():
            yield item.name


def _leaves(schema: pa.Schema) -> Iterator[tuple[int, tuple[str, ...] | None, pa.DataType]]:
    """Every column of the Parquet file by its number, with its path; without one if it is below a list or a map."""
    place = 0
    for item in schema:
        for path, kind in _below((item.name,), item.type):
            yield place, path, kind
            place += 1


def _below(path: tuple[str, ...] | None, kind: pa.DataType) -> Iterator[tuple[tuple[str, ...] | None, pa.DataType]]:
    if types.is_struct(kind):
        for item in kind:
            yield from _below(None if path is None else (*path, item.name), item.type)
    elif types.is_map(kind):
        yield from _below(None, kind.key_type)
        yield from _below(None, kind.item_type)
    elif types.is_nested(kind):
        yield from _below(None, kind.value_type)
    else:
        yield path, kind


def _bounds(parts: list[pq.ColumnChunkMetaData], kind: pa.DataType) -> tuple[Any, Any]:
    rounded = next((pair for is_kind, pair in _ROUNDED if is_kind(kind)), None)
    filled = [
        part for part in parts if not (_counts(part.statistics) and part.num_values == part.statistics.null_count)
    ]
    if rounded is None or not filled or not all(part.statistics and part.statistics.has_min_max for part in filled):
        return None, None
    # Physical values of times: their own types need libraries that may not be installed, and end in the year 9999.
    raw = types.is_temporal(kind)
    lows = [part.statistics.min_raw if raw else part.statistics.min for part in filled]
    highs = [part.statistics.max_raw if raw else part.statistics.max for part in filled]
    down, up = rounded
    return down(min(lows)), up(max(highs))


def _is_null(part: pq.ColumnChunkMetaData) -> bool:
    return _counts(part.statistics) and part.num_values == part.statistics.null_count


def _counts(found: Any) -> bool:
    return found is not None and bool(found.has_null_count)


def _put(into: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _cut(text: str) -> str:
    return text[:LETTERS]


def _cut_up(text: str) -> str | None:
    if len(text) <= LETTERS:
        return text
    return None if text[LETTERS] == LAST else text[:LETTERS] + LAST


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _moment(milliseconds: int, zone: str) -> str | None:
    try:
        found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return found.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone


def _day(days: int) -> str | None:
    found = _moment(days * 86_400_000, "")
    return found and found[:10]


def _is_short_decimal(kind: pa.DataType) -> bool:
    return bool(types.is_decimal(kind) and kind.precision <= CERTAIN_DIGITS)


_Round = Callable[[Any], Any]
_ROUNDED: tuple[tuple[Callable[[pa.DataType], bool], tuple[_Round, _Round]], ...] = (
    (types.is_integer, (int, int)),
    (types.is_floating, (_finite, _finite)),
    (_is_short_decimal, (float, float)),
    (types.is_date, (_day, _day)),
    (
        lambda kind: bool(types.is_timestamp(kind) and kind.tz),
        (lambda value: _moment(value // 1000, "Z"), lambda value: _moment(-(-value // 1000), "Z")),
    ),
    (
        types.is_timestamp,
        (lambda value: _moment(value // 1000, ""), lambda value: _moment(-(-value // 1000), "")),
    ),
    (is_text, (_cut, _cut_up)),
)
"""How the least and the greatest value are written; the first match counts."""
