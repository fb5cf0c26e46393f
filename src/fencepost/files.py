"""A folder of files, to read from or to write to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from fencepost.sinks.contract import Capabilities, Session, Sink
from fencepost.sinks.files import Files as FileSink
from fencepost.sources.files import FileSource


@dataclass(frozen=True)
class Files(Sink):
    """A folder of files.

        job.read(fp.Files("in", format="json", schema="id BIGINT, word STRING"))
        job.write(frame, fp.Files("out", format="parquet"))

    As a source each file is read once; as a sink each epoch becomes one file that appears whole or not at all. The
    mistake people make: appending to a file that was read already. Spark will not look at it again; write new files,
    and move them into the folder when they are whole.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    format: str = "parquet"
    schema: str | None = None
    """Reading only: columns as in SQL. Text has none: its one column is `value`."""
    max_files_per_epoch: int | None = None
    """Reading only: at most so many files in one epoch."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Reading only: Spark's own options of the format."""
    visible: Literal["rename", "manifest"] = "rename"
    """Writing only: how an epoch's file becomes visible. See docs/GUARANTEES.md."""
    name: str = ""

    def __post_init__(self) -> None:
        """A name of its own, if none was given."""
        if not self.name:
            object.__setattr__(self, "name", f"files:{Path(self.path).name}")

    def load(self, reader: Any) -> Any:
        """As a source."""
        return FileSource(
            path=os.fspath(self.path),
            format=self.format,
            schema=self.schema,
            max_files_per_epoch=self.max_files_per_epoch,
            options=dict(self.options),
        ).load(reader)

    @property
    def capabilities(self) -> Capabilities:
        """As a sink."""
        return self._sink.capabilities

    def session(self, job: str) -> Session:
        """As a sink."""
        return self._sink.session(job)

    @property
    def _sink(self) -> FileSink:
        return FileSink(os.fspath(self.path), format=cast("Any", self.format), visible=self.visible, name=self.name)
