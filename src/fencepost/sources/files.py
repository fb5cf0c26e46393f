"""A folder of files as a source: each file is read once, in the order in which it appeared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fencepost.errors import BadConfig, Where

FORMATS = ("text", "json", "csv", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Settings of a folder that is read. See `fencepost.Files`."""

    path: str
    format: str
    schema: str | None
    max_files_per_epoch: int | None
    options: dict[str, str] = field(default_factory=dict)

    def load(self, reader: Any) -> Any:
        """A streaming DataFrame; text has one column, `value`, the others the columns of `schema`."""
        where = Where(path=self.path)
        if self.format not in FORMATS:
            raise BadConfig(
                "unknown_format", f"Files cannot be read as {self.format!r}.", where=where, next=f"Use {FORMATS}."
            )
        if self.schema is None and self.format != "text":
            raise BadConfig(
                "no_schema",
                f"A stream of {self.format} files needs a schema: Spark would guess it anew at every start.",
                where=where,
                next="Give schema='id BIGINT, word STRING' or the like.",
            )
        reader = reader.format(self.format)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        if self.max_files_per_epoch is not None:
            reader = reader.option("maxFilesPerTrigger", self.max_files_per_epoch)
        for name, value in self.options.items():
            reader = reader.option(name, value)
        return reader.load(self.path)
