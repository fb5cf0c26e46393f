"""A Delta table as its log says, read as JSON and Parquet: by nothing that the sink uses to write it.

Checkpoints are read if versions before them are gone, and compared with what the versions say if they are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq


@dataclass
class DeltaLog:
    """What the log of a table says at its newest version, or at another one."""

    folder: Path
    at: int | None = None
    version: int = -1
    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Those that count, by path."""
    marks: dict[str, int] = field(default_factory=dict)
    """The newest `txn` of each application."""

    def __post_init__(self) -> None:
        log = self.folder / "_delta_log"
        versions = sorted(int(path.stem) for path in log.glob("[0-9]*.json"))
        versions = [version for version in versions if self.at is None or version <= self.at]
        assert versions == list(range(versions[0], versions[-1] + 1)), "the log has a gap"
        if versions[0] > 0:
            self._start_at(log, max(self._checkpoints(log)))
        for version in versions:
            if version > self.version:
                for action in actions(self.folder, version):
                    self._apply(action)
                self.version = version

    @property
    def id(self) -> str:
        return str(self.metadata["id"])

    @property
    def types(self) -> dict[str, Any]:
        return {one["name"]: one["type"] for one in json.loads(self.metadata["schemaString"])["fields"]}

    def rows(self) -> list[dict[str, Any]]:
        """Every row, in no particular order."""
        return [row for path in self.files for row in self.rows_in(path)]

    def rows_in(self, path: str) -> list[dict[str, Any]]:
        """The rows of one data file, with those columns that are only in the log."""
        add = self.files[path]
        types = self.types
        file = pq.ParquetFile(self.folder / unquote(path))
        assert add["size"] == (self.folder / unquote(path)).stat().st_size
        assert add.get("deletionVector") is None, "not known to this reader"
        shared = {name: _value(types[name], text) for name, text in add["partitionValues"].items()}
        assert set(shared) == set(self.metadata["partitionColumns"])
        table = file.read()
        assert not set(table.column_names) & set(shared), "a partition column is in the file"
        missing = dict.fromkeys(set(types) - set(table.column_names) - set(shared))
        return [{**missing, **shared, **row} for row in table.to_pylist()]

    def statistics(self, path: str) -> dict[str, Any]:
        """What the log says about the values in a file."""
        return dict(json.loads(self.files[path]["stats"]))

    def _checkpoints(self, log: Path) -> Iterator[int]:
        for path in log.glob("*.checkpoint.parquet"):
            version = int(path.name.partition(".")[0])
            if self.at is None or version <= self.at:
                yield version

    def _start_at(self, log: Path, version: int) -> None:
        for action in pq.read_table(log / f"{version:020d}.checkpoint.parquet").to_pylist():
            self._apply({kind: _dict(kind, body) for kind, body in action.items() if body is not None})
        self.version = version

    def _apply(self, action: dict[str, Any]) -> None:
        for kind, body in action.items():
            if kind == "add":
                assert body["path"] not in self.files, "a file is added twice"
                self.files[body["path"]] = body
            elif kind == "remove":
                self.files.pop(body["path"], None)
            elif kind == "metaData":
                self.metadata = body
            elif kind == "protocol":
                self.protocol = body
            elif kind == "txn":
                self.marks[body["appId"]] = body["version"]


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    """One commit."""
    text = (folder / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.split("\n") if line]


def info(folder: Path, version: int) -> dict[str, Any]:
    """What a commit says about itself."""
    return next(dict(one["commitInfo"]) for one in actions(folder, version) if "commitInfo" in one)


def commit(folder: Path, *actions: dict[str, Any]) -> int:
    """Write the next version by hand, as an engine would that we do not have."""
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    version = len(list(log.glob("[0-9]*.json")))
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return version


def _dict(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Maps are lists of pairs in a checkpoint."""
    if kind == "add":
        return body | {"partitionValues": dict(body["partitionValues"])}
    return body | {"configuration": dict(body["configuration"])} if kind == "metaData" else body


def _value(kind: Any, text: str | None) -> Any:
    """A partition's value, by the rules of Delta's protocol."""
    if not text:
        return None
    name = kind.partition("(")[0]
    return _VALUES[name](text)


_VALUES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    "boolean": {"true": True, "false": False}.__getitem__,
    "date": date.fromisoformat,
    "timestamp": lambda text: datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC),
    "timestamp_ntz": lambda text: datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f"),  # noqa: DTZ007 - it has none
    "decimal": Decimal,
    "string": str,
}
