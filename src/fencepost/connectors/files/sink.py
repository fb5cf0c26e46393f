"""A folder of files, to read from or to write to: the settings of both ends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fencepost.connectors.files.layout import WRITE
from fencepost.connectors.files.source import FOREVER
from fencepost.contract import Capabilities, Dataset, Session, Sink, Source, dataset_at
from fencepost.errors import BadConfig, FencepostError, Where

READ = ("text", "json", "csv", "parquet")
"""Formats that can be read; those that can be written are in `WRITE`."""


@dataclass(frozen=True)
class Files(Sink, Source):
    """A folder of files.

        job.read(fp.Files("in", format="json", schema="id BIGINT, word STRING"))
        job.write(frame, fp.Files("out", format="parquet"))

    As a source, it reads each file once, whatever its modification time; of several new files the one with the oldest
    time comes first. A file is known by its path: it is never read a second time, so do not append to files; write new
    ones, and move them into the folder once they are complete.

    As a sink, it writes each epoch to one Parquet, JSON-lines or CSV file, which appears completely or not at all. With
    `visible="rename"` the file is moved into the folder when it is committed: for readers that list the folder (Spark,
    DuckDB, a spool consumer, which may delete what it has read). With `visible="manifest"` it is in the folder from the
    start, and counts only once a manifest names it: for readers that use `fp.list_published(path)`. Note: a listing of
    such a folder also shows files of failed epochs.

    A crash does no harm with either. A power cut right after a rename may undo the rename, which is then repeated: only
    a consumer that had read *and deleted* the file within those milliseconds sees it twice.

    CSV is written as in RFC 4180: to read values with line breaks, quotes or backslashes, Spark needs `multiLine=true`
    and `escape="`. NULL is an empty field; in a file with one column it is `""`, because readers skip empty lines.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    format: str = "parquet"
    schema: str | None = None
    """Reading only: the columns, as in SQL. Not for text, whose only column is `value`."""
    max_files_per_epoch: int | None = None
    """Reading only: the maximum number of files in one epoch."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Reading only: Spark's own options for the format."""
    visible: Literal["rename", "manifest"] = "rename"
    """Writing only: how an epoch's file becomes visible. See docs/GUARANTEES.md."""
    name: str = ""
    """By default `files:<folder>`."""

    def __post_init__(self) -> None:
        """Refuse settings that work neither for reading nor for writing."""
        place = os.fspath(self.path)
        object.__setattr__(self, "name", self.name or f"files:{Path(place).name}")
        if not place:
            raise self._bad("path is empty", "Give the path of a folder.")
        if self.visible not in {"rename", "manifest"}:
            raise self._bad(f"unknown visible={self.visible!r}", 'Use visible="rename" or visible="manifest".')

    def load(self, reader: Any) -> Any:
        """As a source: a streaming DataFrame with the columns of `schema`, or for text with one column, `value`."""
        path = os.fspath(self.path)
        if self.format not in READ:
            raise BadConfig(
                "unknown_format",
                f"Cannot read files with format={self.format!r}.",
                where=Where(path=path),
                next=f"Use one of {', '.join(READ)}.",
            )
        if self.schema is None and self.format != "text":
            raise BadConfig(
                "no_schema",
                f"A stream of {self.format} files needs a schema: Spark would infer it again at every start.",
                where=Where(path=path),
                next="Add the schema, for example schema='id BIGINT, word STRING'.",
            )
        reader = reader.format(self.format).option("maxFileAge", FOREVER)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        if self.max_files_per_epoch is not None:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_epoch)
        for name, value in self.options.items():
            reader = reader.option(name, value)
        return reader.load(path)

    @property
    def capabilities(self) -> Capabilities:
        """As a sink: an epoch's one file becomes visible atomically, and is itself the durable copy of the rows."""
        self._check_can_be_written()
        return Capabilities(shape="publish", repeatable=True, keeps_rows=False)

    def session(self, job: str) -> Session:
        """As a sink: open the driver's side."""
        from fencepost.connectors.files.session import FilesSession  # noqa: PLC0415 - it imports these settings

        self._check_can_be_written()
        return FilesSession(self, job)

    def dataset(self) -> Dataset:
        """The folder."""
        return dataset_at(self.path)

    def _check_can_be_written(self) -> None:
        """Not checked at construction: a source may read text, and from a remote store."""
        if "://" in os.fspath(self.path):
            raise self._bad("path must be a local folder", "Use a local or mounted folder.")
        if self.format not in WRITE:
            raise self._bad(f"cannot write format={self.format!r}", f"Use one of {', '.join(WRITE)}.")

    def _bad(self, what: str, cure: str) -> FencepostError:
        return BadConfig("bad_sink", f"Files: {what}.", next=cure).at(sink=self.name)
