"""Which Redis key and value a row becomes.

Never two keys for one row, nor one key for two: with several key columns, what joins them is escaped inside of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fencepost.errors import BadConfig
from fencepost.sinks.database import RowsRefused
from fencepost.sinks.redis.texts import BYTES, texts
from fencepost.sinks.values import as_column_type

Shape = Literal["hash", "string", "json", "counter", "sorted_set"]

RESERVED = "fencepost:"
"""What our own keys begin with."""
MOST_COLUMNS = 1000
"""Lua passes so many values to one command, and not many more."""


_COLUMNS = {
    "hash": (1, MOST_COLUMNS),
    "string": (1, 1),
    "json": (0, MOST_COLUMNS),
    "counter": (1, 1),
    "sorted_set": (0, 0),
}
"""How many columns a shape takes beside those that are named."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows become keys and in which chunks: all of it is in a handle, so that a restart cuts the same chunks."""

    shape: Shape
    prefix: str
    key: tuple[str, ...]
    member: str | None
    score: str | None
    chunk_rows: int
    chunk_bytes: int

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Layout:
        """From a handle."""
        return cls(**{**body, "key": tuple(body["key"])})

    @property
    def body(self) -> dict[str, Any]:
        """For a handle."""
        return {**asdict(self), "key": list(self.key)}

    @property
    def own(self) -> str:
        """What our keys beside the rows begin with: in a cluster they must lie where the rows lie."""
        tag = tag_of(self.prefix)
        return f"{{{tag}}}:{RESERVED}" if tag else RESERVED

    def values_of(self, names: Sequence[str]) -> list[str]:
        """The columns that are not the key."""
        if self.shape == "sorted_set":
            return [cast("str", self.member), cast("str", self.score)]
        return [name for name in names if name not in self.key]

    def check(self, schema: pa.Schema) -> None:
        """Refuse a DataFrame that has no such columns, or more than have a place."""
        named = [*self.key, *(name for name in (self.member, self.score) if name is not None)]
        missing = [name for name in named if name not in schema.names]
        if missing:
            raise BadConfig(
                "key_not_in_rows",
                f"The DataFrame has no column {', '.join(map(repr, missing))}.",
                next=f"Name columns of the DataFrame: {', '.join(schema.names)}.",
            )
        rest = [name for name in schema.names if name not in named]
        least, most = _COLUMNS[self.shape]
        if not least <= len(rest) <= most or len(set(schema.names)) != len(schema.names):
            raise BadConfig(
                "columns_do_not_fit",
                f"shape={self.shape!r} takes {least if least == most else f'{least} to {most}'} columns beside "
                f"{', '.join(named)}, each of them once; the DataFrame has {', '.join(schema.names)}.",
                next="Select the columns that are meant, or choose another shape.",
            )
        self._check_types({name: as_column_type(schema.field(name).type) for name in schema.names}, rest)

    def _check_types(self, kinds: Mapping[str, pa.DataType], rest: Sequence[str]) -> None:
        for name in (*self.key, *([self.member] if self.member else [])):
            if types.is_nested(kinds[name]) or types.is_null(kinds[name]):
                raise BadConfig(
                    "key_type",
                    f"The key column {name!r} is of type {kinds[name]}.",
                    next="Name columns of plain values.",
                )
        if self.shape == "counter" and not types.is_integer(kinds[rest[0]]):
            raise BadConfig(
                "counter_type",
                f"A counter adds whole numbers, and {rest[0]!r} is of type {kinds[rest[0]]}: sums of floats depend on "
                "their order, so that they would not be exact.",
                next="Cast it to a whole number of small units (cents, microseconds), or keep the total in Spark and "
                "write it with shape='string'.",
            )
        score = self.score
        if score is not None and not (types.is_integer(kinds[score]) or types.is_floating(kinds[score])):
            raise BadConfig(
                "score_type",
                f"The score {score!r} is of type {kinds[score]}; Redis keeps scores as doubles.",
                next="Cast it to double, or to a whole number.",
            )

    def identities(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The Redis key of every row, and its member in a sorted set: rows that agree in these replace each other."""
        parts = [self._part(batch, name) for name in self.key]
        if len(parts) > 1:
            for mark, escaped in ((b"%", b"%25"), (b":", b"%3A")):
                parts = [pc.replace_substring(part, mark, escaped) for part in parts]
        own = pa.scalar(self.prefix.encode(), BYTES)
        if parts:
            joined = pc.binary_join_element_wise(*parts, pa.scalar(b":", BYTES))
            keys = pc.binary_join_element_wise(own, joined, pa.scalar(b"", BYTES))
        else:
            keys = pa.repeat(own, batch.num_rows)
        if pc.any(pc.starts_with(keys, self.own.encode())).as_py():
            raise RowsRefused(f"a key begins with {self.own!r}, where fencepost keeps its own")
        return [keys, self._part(batch, self.member)] if self.member is not None else [keys]

    def _part(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(name)
        if pc.any(pc.is_null(column, nan_is_null=True)).as_py():
            raise RowsRefused(f"the key column {name!r} is NULL or NaN in some rows")
        return texts(name, column)


def tag_of(prefix: str) -> str:
    """What stands in the first braces: Redis chooses a key's slot by it."""
    _, brace, rest = prefix.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if brace and closed else ""
