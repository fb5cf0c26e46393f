"""What a Delta table demands of whoever writes to it: its protocol, features, properties and columns.

A feature is listed here if we know what it demands, and either do it or see that the table does not use it. All others
are refused, also those that the library would accept: the tables of other people are not a place to try.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost.connectors.delta.columns import Column

DAYS = 365
"""The least time for which a table must remember our mark."""
CHECK = "delta.constraints."
"""Properties with this prefix are CHECK constraints."""


@dataclass(frozen=True, slots=True)
class Demands:
    """A table, as far as it concerns its writers."""

    reader: int
    writer: int
    features: frozenset[str]
    properties: Mapping[str, str]
    columns: tuple[Column, ...]

    def is_on(self, name: str) -> bool:
        return self.properties.get(name, "false").strip().lower() == "true"

    def unmet(self, *, removes: bool) -> Iterator[str]:
        """In words, what we cannot do."""
        if self.writer > 7 or self.reader > 3:
            yield f"its protocol is newer than this fencepost (reader {self.reader}, writer {self.writer})"
        if self.writer == 6:  # writers before version 7 have no list of features
            yield _WHY["identityColumns"]
        for name in sorted(self.features - _HARMLESS):
            yield _WHY.get(name, f"the table feature {name!r} is not known to this fencepost")
        yield from (why for is_so, why in _PROPERTIES if is_so(self))
        if removes and self.is_on("delta.appendOnly"):
            yield "rows must not be replaced or removed (delta.appendOnly)"
        for column in self.columns:
            yield from _of_column(column, removes=removes)
        for name, expression in self.checks.items():
            if "/" in expression:
                yield f"CHECK constraint {name!r} divides, and Spark divides integers in another way than this library"

    @property
    def has_ntz(self) -> bool:
        return "timestampNtz" in self.features

    @property
    def checks(self) -> dict[str, str]:
        """The CHECK constraints by name."""
        return {key.removeprefix(CHECK): text for key, text in self.properties.items() if key.startswith(CHECK)}


def _of_column(column: Column, *, removes: bool) -> Iterator[str]:
    for key, why in _METADATA.items():
        if key in column.metadata:
            yield f"column {column.name!r} {why}"
    if column.kind is None and (removes or column.required):
        yield f"column {column.name!r} is {column.shown}, which this fencepost cannot read and write"


def _forgets(demands: Demands) -> bool:
    text = demands.properties.get("delta.setTransactionRetentionDuration")
    return text is not None and _days(text) < DAYS


def _days(text: str) -> float:
    """Of an interval as Spark writes it ('interval 30 days'); nothing if it is not one."""
    found = re.findall(r"(\d+)\s*([a-z]+?)s?\b", text.lower().removeprefix("interval"))
    return sum(int(number) * _UNITS.get(unit, 0.0) for number, unit in found)


_UNITS: Final = {"week": 7.0, "day": 1.0, "hour": 1 / 24, "minute": 1 / 1440, "second": 1 / 86400}
_HARMLESS: Final = frozenset(
    {
        "appendOnly",  # by its property
        "invariants",  # by each column
        "checkConstraints",  # evaluated before the vote
        "changeDataFeed",  # added and replaced files need no feed of their own, and the library's merge writes it
        "generatedColumns",  # by each column
        "columnMapping",  # by its property
        "deletionVectors",  # files of ours have none; the library reads and removes files of others that do
        "timestampNtz",
        "v2Checkpoint",  # the library reads and writes them
        "variantType",  # by each column
        "variantType-preview",
    }
)
_WHY: Final[Mapping[str, str]] = {
    "identityColumns": "identity columns, whose numbers only Delta's own engines give",
    "rowTracking": "row tracking, whose ids only Delta's own engines give",
    "domainMetadata": "domain metadata, which the library cannot keep",
    "inCommitTimestamp": "in-commit timestamps, which the library does not write",
    "clustering": "liquid clustering, which the library cannot keep",
    "typeWidening": "type widening, which the library cannot read",
    "typeWidening-preview": "type widening, which the library cannot read",
    "allowColumnDefaults": "column defaults, which are not applied to rows that come as files",
    "icebergCompatV1": "compatibility with Iceberg, which the library cannot keep",
    "icebergCompatV2": "compatibility with Iceberg, which the library cannot keep",
    "vacuumProtocolCheck": "the feature vacuumProtocolCheck, which the library does not know",
    "variantShredding-preview": "shredded variants, which the library cannot read",
}
_PROPERTIES: tuple[tuple[Callable[[Demands], bool], str], ...] = (
    (
        lambda it: it.properties.get("delta.columnMapping.mode", "none").lower() != "none",
        "column mapping, by which data files have other names for columns (delta.columnMapping.mode)",
    ),
    (
        _forgets,
        f"delta.setTransactionRetentionDuration must be at least {DAYS} days: the table would forget what it holds",
    ),
    (
        lambda it: it.is_on("delta.compatibility.symlinkFormatManifest.enabled"),
        "manifests for other engines, which would go stale (delta.compatibility.symlinkFormatManifest.enabled)",
    ),
)
_METADATA: Final[Mapping[str, str]] = {
    "delta.generationExpression": "is generated, which only Delta's own engines do",
    "delta.identity.start": "is an identity column, whose numbers only Delta's own engines give",
    "delta.invariants": "has an invariant, which is not evaluated: make it a CHECK constraint",
    "delta.typeChanges": "was widened, which the library cannot read",
    "CURRENT_DEFAULT": "has a default, which is not applied to rows that come as files",
}


def demands_of(protocol: Any, properties: Mapping[str, str], columns: Sequence[Column]) -> Demands:
    """Of the library's view of a table."""
    features = frozenset([*(protocol.writer_features or ()), *(protocol.reader_features or ())])
    readers, writers = protocol.min_reader_version, protocol.min_writer_version
    return Demands(readers, writers, features, properties, tuple(columns))
