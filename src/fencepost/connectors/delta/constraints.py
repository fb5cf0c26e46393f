"""CHECK constraints of a Delta table. The library follows them in what it writes itself, not in files it is handed.

So the rows are written once more, by the library, to a table in a temporary folder that has the same constraints.
Never lets its errors out: they show the rows.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from fencepost.connectors.delta.columns import Column, schema_of
from fencepost.connectors.delta.demands import CHECK
from fencepost.connectors.delta.log import path_of
from fencepost.connectors.table.database import BadValue, Silent

FEATURES = ["checkConstraints", "timestampNtz"]
Batches = Callable[[], Iterable[pa.RecordBatch]]
"""The rows, again at every call."""


class Constraints:
    """The CHECK constraints of one table."""

    def __init__(self, columns: Mapping[str, Column], checks: Mapping[str, str]) -> None:
        self._schema = pa.schema([(one.name, one.stored) for one in columns.values() if one.kind is not None])
        self._checks = dict(sorted(checks.items()))

    def unknown(self) -> list[str]:
        """Names of constraints that the library cannot evaluate."""
        return [name for name in self._checks if not self._hold([name], lambda: ())]

    def refuse(self, batches: Batches) -> None:
        """`BadValue`, with the names of the constraints, if rows violate them; NULL violates, as in Delta's engines."""
        if not self._checks or self._hold(self._checks, batches):
            return
        violated = [name for name in self._checks if not self._hold([name], batches)]
        raise BadValue(f"check constraint violation, constraint {', '.join(map(repr, violated or self._checks))}")

    def _hold(self, names: Iterable[str], batches: Batches) -> bool:
        checks = {f"{CHECK}{name}": self._checks[name] for name in names}
        failed: list[Exception] = []
        try:
            with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
                _make_table(Path(folder), self._schema, checks)
                rows = pa.RecordBatchReader.from_batches(self._schema, self._whole(batches, failed))
                write_deltalake(DeltaTable(folder), rows, mode="append")
        except DeltaError:
            if failed:
                raise failed[0] from None
            return False
        except OSError as error:
            raise Silent(f"rows cannot be checked in a temporary folder ({type(error).__name__})") from None
        return True

    def _whole(self, batches: Batches, failed: list[Exception]) -> Iterator[pa.RecordBatch]:
        """Columns that rows do not have are NULL in the table."""
        try:
            for batch in batches():
                there = set(batch.schema.names)
                arrays = [
                    batch.column(item.name) if item.name in there else pa.nulls(batch.num_rows, item.type)
                    for item in self._schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except Exception as error:
            failed.append(error)  # the library would quote it
            raise


def _make_table(folder: Path, schema: pa.Schema, properties: Mapping[str, str]) -> None:
    """By hand: the library would rewrite the expressions, and refuse some that it can evaluate."""
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": ["timestampNtz"], "writerFeatures": FEATURES}
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_of(schema),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": 0,
    }
    path = folder / path_of(0)
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, ({"protocol": versions | features}, {"metaData": metadata}))))
