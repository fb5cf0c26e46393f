"""Writes the rows of one view of a state into one file. Never into the checkpoint, never over a file that is there."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fencepost.checkpoints.inside import Inside, Operator, View, frame, reading
from fencepost.checkpoints.savepoint import is_inside
from fencepost.errors import BadConfig, Where
from fencepost.spark.branches import quoted

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
FORMATS: Mapping[str, Mapping[str, str]] = {
    ".parquet": {},
    ".json": {"ignoreNullFields": "false", **_TIMES},
    ".csv": {"header": "true", "escape": '"', **_TIMES},
}
"""By how the file's name ends; `.json` has one object a line."""


def check_target(inside: Inside, to: Path) -> None:
    """Refuse a place where nothing may be written, before anything is read."""
    where = Where(path=str(to))
    if to.suffix not in FORMATS:
        raise BadConfig(
            "unknown_format", "The file's name says no format.", where=where, next=f"End it in {', '.join(FORMATS)}."
        )
    if is_inside(to, inside.path):
        raise BadConfig(
            "inside_the_checkpoint", "A checkpoint is only read.", where=where, next="Name a file elsewhere."
        )
    if to.exists():
        raise BadConfig("file_exists", "The file exists.", where=where, next="Name a new one, or remove it.")
    if not to.parent.is_dir():
        raise BadConfig("no_folder", "The file's folder does not exist.", where=where, next="Make the folder.")


def export(spark: Any, inside: Inside, operator: Operator, view: View, *, epoch: int, to: Path) -> None:
    """One file, whole or not at all."""
    check_target(inside, to)
    folder = to.parent / f".{to.name}.{uuid.uuid4().hex[:8]}.tmp"  # Spark writes folders
    try:
        with reading(spark, inside, epoch):
            rows = frame(spark, inside, operator, view, epoch)
            columns = [name for part in view.columns for name in part]
            # The state of dropDuplicates has no value, and no file has a type for that.
            rows = rows.select(*[name for name in columns if "void" not in rows.schema[name].dataType.simpleString()])
            if to.suffix == ".csv":
                rows = rows.selectExpr(*_flat(rows.schema))
            rows.coalesce(1).write.format(to.suffix[1:]).options(**FORMATS[to.suffix]).save(str(folder.absolute()))
        os.link(next(folder.glob("part-*")), to)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _flat(schema: Any, above: str = "", title: str = "") -> Iterator[str]:
    """Every leaf as a column of its own; lists and maps as JSON."""
    for field in schema.fields:
        path, name = f"{above}{quoted(field.name)}", f"{title}{field.name}"
        if hasattr(field.dataType, "fields"):
            yield from _flat(field.dataType, f"{path}.", f"{name}.")
        elif field.dataType.typeName() in ("array", "map"):
            yield f"to_json({path}) AS {quoted(name)}"
        else:
            yield f"{path} AS {quoted(name)}"
