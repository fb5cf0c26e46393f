"""A table of a lakehouse as our sinks use it: Parquet files in a folder, and a log that says which of them count.

    LakeSession   one per sink     the protocol: pre-commit, vote, commit, recovery (`session.py`)
    LakeTable     one per session  what differs between formats: the log, its compare-and-set, types, files

A `LakeTable` looks at the table with `load`; everything else, commits included, is about what that look found. So the
question (`mark`) and the commit are one compare-and-set: if anybody else moved the mark in between, the commit raises
`Conflict`, and the session loads and asks again.

Never lets a library's error out: those quote rows, and URLs with credentials. Never puts a value of a row into a name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from fencepost.connectors.table.mark import Mark
from fencepost.contract import Owner
from fencepost.store.staging import Rows

FOLDER = "fp-"
"""Our data files lie in folders that begin like this, below the table's own: `fp-<lineage>-<writer>/`."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of ours. The ledger has these, so there is no statistic and no partition value in them."""

    path: str
    """Relative to the table's folder: `fp-<lineage>-<writer>/<handle>-<n>.parquet`."""
    bytes: int
    rows: int


def folder_of(lineage: str, writer: int) -> str:
    """Where one writer puts its data files, below the table's folder."""
    return f"{FOLDER}{lineage[:8]}-{writer}"


class LakeTable(ABC):
    """One table. Methods raise `Silent`, `Denied`, `NotAllowed`, `Conflict`, `RowsRefused` or `BadValue`."""

    product: ClassVar[str]
    """"Delta", "Iceberg"."""

    time_travel: ClassVar[str] = "VERSION AS OF"
    """What stands between the table's name and a version in a query, in this format's own words."""

    # A look at the table. Everything below is about what the last look found.

    @abstractmethod
    def load(self) -> bool:
        """Look at the newest version; False if there is no such table. `Silent` if that cannot be said."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The id that the table was made with; another table at the same place has another."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The version or snapshot that the last `load` or commit saw, as people write it in a query; "" if none."""

    @property
    @abstractmethod
    def place(self) -> str:
        """A text that is equal for one table, whatever name or path led to it. Never shown."""

    @abstractmethod
    def mark(self, job: str, sink: str, lineages: Sequence[str]) -> Mark | None:
        """The mark of this job and sink. `lineages`: ours, then those before it; another one's is returned too."""

    def shown(self, handles: str) -> str:
        """The handles of an epoch as the mark of such a table can hold them; by default as they are."""
        return handles

    def handle_text(self, job: str, sink: str, mark: Mark) -> str:
        """The handles that a mark stands for, as they were before `shown`; "" if nothing says so any more."""
        return mark.handle

    @abstractmethod
    def setback(self, job: str, sink: str, mark: Mark) -> str | None:
        """Was the table set back behind the commit that wrote the mark (RESTORE, a rollback)? How, in words.

        A mark survives such a thing in both formats, while the rows do not.
        """

    @abstractmethod
    def version_of(self, job: str, sink: str, lineage: str, generation: int, epoch: int) -> str | None:
        """The version that our commit of this epoch made, as people write it in a query.

        None if the table's own history does not have it, or not any more.
        """

    @abstractmethod
    def unfit(self, *, removes: bool) -> list[str]:
        """What this table demands of its writers and we cannot do, in words (features, identity columns, …).

        `removes`: rows are replaced or removed, too.
        """

    @abstractmethod
    def misfits(self, schema: pa.Schema, *, may_add: bool) -> list[str]:
        """Every reason why the table does not fit the rows, for people. `may_add`: new columns will be added."""

    @abstractmethod
    def new_columns(self, schema: pa.Schema) -> list[str]:
        """Columns of the rows that the table does not have."""

    @abstractmethod
    def uncreatable(self, schema: pa.Schema) -> list[str]:
        """Reasons why no table can be made for these rows: types without a counterpart, unknown partition columns."""

    @abstractmethod
    def create(self, schema: pa.Schema) -> None:
        """Make the table; `Conflict` if somebody else did meanwhile."""

    # Rows.

    @abstractmethod
    def check_rows(self, rows: Rows, *, may_add: bool = False) -> None:
        """Refuse rows that the table forbids (NOT NULL, CHECK) or whose values it cannot keep: `BadValue`.

        With `may_add` they may have columns that `extend` or `merge` is going to add.

        The library does not do that for files that are handed to it.
        """

    @abstractmethod
    def write(self, folder: str, stem: str, rows: Rows) -> list[DataFile]:
        """Write the rows as Parquet files `<folder>/<stem>-<n>.parquet`, durably; nobody reads them yet.

        Refuses what `check_rows` refuses, in the same pass, and then leaves no file.
        The files say themselves what a commit needs to know (statistics, partition): a later process reads it there.
        """

    @abstractmethod
    def lost(self, files: Iterable[DataFile]) -> list[str]:
        """Paths of files that are not there any more, or not as they were written."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Remove data files that nothing names; those that are gone already are fine."""

    @abstractmethod
    def files_in(self, folder: str) -> list[str]:
        """Names of the files in one of our folders; empty if there is none."""

    # Commits: rows and mark in one version of the table. `Conflict` if the mark moved since the look, or the table
    # moved in a way that makes this commit wrong; then nothing was written. `Silent` if nobody can say.

    @abstractmethod
    def append(self, files: Sequence[DataFile], job: str, sink: str, mark: Mark | None) -> None:
        """Add files."""

    @abstractmethod
    def replace(self, files: Sequence[DataFile], job: str, sink: str, mark: Mark | None) -> None:
        """Put files in the place of everything that the table holds."""

    @abstractmethod
    def extend(self, rows: Rows, job: str, sink: str, mark: Mark | None) -> None:
        """Add rows that have new columns, and the columns, in one version."""

    @abstractmethod
    def upsert(  # noqa: PLR0917 - what all commits are given, and the key
        self, rows: Rows, key: Sequence[str], deletes: str | None, job: str, sink: str, mark: Mark | None
    ) -> None:
        """Replace the rows with the same key, and remove those that `deletes` says; each key comes once."""

    # For people.

    @abstractmethod
    def how_to_mark(self, job: str, sink: str, owner: Owner) -> tuple[str, str]:
        """Commands (lines of Python) that remove the mark, and that set it to `{epoch}`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. Must not raise."""
