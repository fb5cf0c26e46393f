"""The settings of a Delta or Iceberg table as a sink."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Literal

from fencepost import credential
from fencepost.connectors.lake.table import LakeTable
from fencepost.connectors.table.sink import TableSettings, upserts
from fencepost.contract import Capabilities, Session
from fencepost.errors import BadConfig

SchemaChange = Literal["strict", "add_columns"]
FILE_BYTES = 128 << 20
"""About how large a data file becomes."""
MERGE_BYTES = 256 << 20
"""How large the rows of an epoch may be that are merged by key; the driver needs several times as much memory."""
NOT_KEPT = (
    "keep_rows=False: data files that are deleted before their commit (a VACUUM without retention, a lifecycle rule) "
    "cannot be written again, and the job stops until they are restored"
)


def resolved(options: Mapping[str, str], argument: str) -> dict[str, str]:
    """Options with secrets in place of references to them. `file://…` is a location, `file:/…` a reference."""
    return {
        name: value if value.startswith("file://") else credential.resolve(value, f"{argument}[{name!r}]")
        for name, value in options.items()
    }


class LakeSink(TableSettings):
    """The settings that both formats share. A format's sink is a frozen dataclass with these fields and its own."""

    partition_by: str | Sequence[str]
    properties: Mapping[str, str]
    schema: SchemaChange
    keep_rows: bool
    target_file_bytes: int
    merge_bytes: int

    @abstractmethod
    def lake_table(self) -> LakeTable:
        """The table, not looked at yet."""

    @property
    def publishes(self) -> bool:
        """Are data files written before the decision? Otherwise the commit itself works on the table's rows."""
        return not upserts(self)

    @property
    def capabilities(self) -> Capabilities:
        """Rows and mark are one version of the table."""
        found = super().capabilities
        if not self.publishes:
            return replace(found, names_rows=True)
        note = "" if self.keep_rows else NOT_KEPT
        return replace(found, shape="publish", names_rows=True, keeps_rows=self.keep_rows, note=note)

    def session(self, job: str) -> Session:
        # Not an import: a sink is cheap to build, and workers get what it imports.
        opened: Session = import_module("fencepost.connectors.lake.session").LakeSession(self, job)
        return opened

    def _check_types(self, product: str, **wanted: tuple[type, ...]) -> None:
        """Refuse an argument of another type where it was written, not deep in a library."""
        wanted |= {"partition_by": (str, Sequence), "properties": (Mapping,)}
        wanted |= {"target_file_bytes": (int,), "merge_bytes": (int,)}
        problems = [name for name, kinds in wanted.items() if not isinstance(getattr(self, name), kinds)]
        for name in wanted.keys() - set(problems):
            value = getattr(self, name)
            parts: list[object] = [*value, *value.values()] if isinstance(value, Mapping) else []
            parts += value if isinstance(value, Sequence) else []
            problems += [name] * any(not isinstance(part, str) for part in parts)
        if problems:
            what = f"{product}: {', '.join(sorted(problems))} must hold texts, or is not of a type that it can have."
            next_ = (
                "Names and locations are texts, options are mappings of texts, target_file_bytes and merge_bytes are "
                "numbers of bytes."
            )
            raise BadConfig("bad_sink", what, next=next_).at(sink=self.name or product.lower())

    def _check(self, product: str, name: str, *problems: tuple[object, str, str]) -> None:
        super()._check(
            product,
            name,
            *problems,
            (
                self.schema not in {"strict", "add_columns"},
                f"unknown schema {self.schema!r}",
                'Use "strict" or "add_columns"',
            ),
            (self.target_file_bytes < 1, "target_file_bytes must be at least 1", "Use the default"),
            (self.merge_bytes < 1, "merge_bytes must be at least 1", "Use the default"),
            (
                self.schema == "add_columns" and (upserts(self) or self.mode == "replace"),
                'schema="add_columns" is for rows that are only added',
                "Add the columns to the table yourself, and remove it",
            ),
            (
                not self.keep_rows and (upserts(self) or self.schema == "add_columns"),
                "keep_rows=False is for rows that are only added, to a table whose columns stay as they are",
                "Remove it",
            ),
        )
