"""A Delta table as a stream: the log's JSON files say what each version added.

    _delta_log/00000000000000000007.json    add · remove · metaData · protocol · commitInfo
                                            dataChange=false: rows that were only moved (OPTIMIZE)

One version is one file, which never changes and is read once. The table as a whole, which may be in checkpoints of the
log, is left to `deltalake`. While nothing happens, two looks tell: is the file of the newest version that was read the
same as before, and is there a next one?
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from fencepost.connectors.lake.batches import Shape
from fencepost.connectors.lake.source import (
    AddedFile,
    Change,
    History,
    Position,
    Start,
    extends,
    milliseconds,
    new_names,
    strange,
)
from fencepost.connectors.table.database import Silent
from fencepost.errors import FencepostError
from fencepost.protocol.format import digest

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from fencepost.connectors.delta.files import Folder

AT_ONCE = 16
"""Versions that are fetched at the same time, if many are behind."""
READER_FEATURES = frozenset(
    {
        "columnMapping",  # by its property
        "deletionVectors",  # by each file
        "timestampNtz",
        "v2Checkpoint",  # the library reads them
        "vacuumProtocolCheck",  # for those who delete files
        "variantType",  # by each column
        "variantType-preview",
    }
)
"""Table features of readers that we know. All others are refused, and those in use that we know and cannot read."""
COLUMN_MAPPING = "delta.columnMapping.mode"
VECTORS = "it has deletion vectors: rows that are deleted, and still in the data files"

STORAGE: Mapping[str, tuple[str, ...]] = {
    "access_key": ("aws_access_key_id", "access_key_id"),
    "secret_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
    "endpoint_override": ("aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint", "aws_endpoint_url_s3"),
    "force_virtual_addressing": ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
    "anonymous": ("aws_skip_signature", "skip_signature"),
}
"""By argument of pyarrow's `S3FileSystem`: the names that `deltalake` has for it."""


def storage_of(options: Mapping[str, str]) -> dict[str, str]:
    """`deltalake`'s storage options, for pyarrow."""
    low = {name.lower(): value for name, value in options.items()}
    found = {ours: low[name] for ours, names in STORAGE.items() for name in names if name in low}
    scheme, _, server = found.get("endpoint_override", "").partition("://")
    if server:
        found |= {"endpoint_override": server, "scheme": scheme}
    return found


def located(path: str | os.PathLike[str]) -> str:
    """The table's folder, wherever a process runs: a URL, or a whole path."""
    text = os.fspath(path)
    found = local_folder(text)
    return text if found is None else str(found)


def local_folder(uri: str) -> Path | None:
    """The whole path of a folder on this machine; None for one in a store."""
    if uri.startswith("file:"):
        return Path(unquote(urlsplit(uri).path)).absolute()
    return None if "://" in uri else Path(uri).absolute()


class DeltaHistory(History):
    """The versions of one table."""

    product = "Delta"
    spark_name = "fencepost_delta"
    word = "version"

    def __init__(self, table: str, secrets: Mapping[str, str], columns: Mapping[str, Any] | None = None) -> None:
        super().__init__(table, secrets, columns)
        self._changes: dict[int, Change] = {}
        self._snapshot: tuple[int, list[AddedFile]] | None = None

    def shape(self, schema: pa.Schema) -> Shape:
        return Shape(self.title, schema, storage_of(self._secrets))

    @cached_property
    def _folder(self) -> Folder:
        from fencepost.connectors.delta.files import Folder  # noqa: PLC0415 - deltalake is an extra

        return Folder(self.table, self._secrets)

    # The table as a whole.

    def look(self, version: int | None = None) -> DeltaTable:
        """Open it; refuse one whose files cannot be read correctly."""
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415 - an extra

        try:
            table = DeltaTable(self._folder.uri, version=version, storage_options=self._folder.options or None)
            protocol, metadata = table.protocol(), table.metadata()
        except TableNotFoundError:
            raise self.gone() from None
        except Exception as error:  # noqa: BLE001 - of the library, in many classes
            raise self.silent(type(error).__name__) from None
        if why := _unknown(protocol.min_reader_version, protocol.reader_features or (), metadata.configuration):
            raise self.unfit(why)
        return table

    def columns(self) -> tuple[str, dict[str, Any]]:
        try:
            table = self.look()
        except FencepostError as error:
            raise (self.unusable("there is none") if error.code == "table_gone" else error) from None
        found = _columns(table.schema().to_json())
        if kind := strange(found):
            raise self.unfit(f"it has a column of type {kind}")
        return str(table.metadata().id), found

    def newest(self) -> Position:
        table = self.look()
        return Position(str(table.metadata().id), table.version(), stamp=self._stamp(table.version()) or "")

    def snapshot(self, position: Position) -> Sequence[AddedFile]:
        if self._snapshot is None or self._snapshot[0] != position.version:
            self._snapshot = position.version, self._files_of(position)
        return self._snapshot[1]

    def _files_of(self, position: Position) -> list[AddedFile]:
        if not self._has_all(position.version):
            raise self.history_lost(position.version)
        table = self.look(position.version)
        if str(table.metadata().id) != position.table:
            raise self.replaced()
        if (trouble := self._misfit(position.version, _columns(table.schema().to_json()))) is not None:
            raise trouble
        try:
            has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
            if has_vectors and pa.table(table.deletion_vectors()).num_rows:
                raise self.unfit(VECTORS)
            added = pa.table(table.get_add_actions()).to_pylist()
        except FencepostError:
            raise
        except Exception as error:  # noqa: BLE001 - of the library, in many classes
            raise self.silent(type(error).__name__) from None
        files = [self._file(one["path"], one["size_bytes"], one.get("partition") or {}) for one in added]
        return sorted(files, key=lambda file: file.path)

    def _has_all(self, version: int) -> bool:
        """Does the log still have all that this version is made of? `deltalake` takes what there is."""
        numbers = [(int(found[1]), found[2]) for name in self._names() if (found := LOG.match(name))]
        checkpoints = [number for number, kind in numbers if kind.startswith("checkpoint.") and number <= version]
        first = max(checkpoints, default=-1) + 1
        commits = {number for number, kind in numbers if kind == "json"}
        return commits.issuperset(range(first, version + 1))

    def _names(self) -> list[str]:
        with self._told():
            return self._folder.names(FOLDER)

    # Where a stream begins.

    def begin(self, start: Start, newest: Position) -> Position:
        if start == "earliest":
            return replace(newest, files=0, snapshot=True)
        if start == "latest":
            return newest
        if isinstance(start, datetime):
            start = self._version_at(start, newest.version)
        assert isinstance(start, int)
        if start > newest.version + 1:
            raise self.bad_start(f"version {start} does not exist; the newest is {newest.version}")
        if start <= newest.version and not self._has(start):
            raise self.bad_start(f"version {start} is not in the table's log any more")
        return Position(newest.table, start - 1, stamp=(self._stamp(start - 1) or "") if start else "")

    def _version_at(self, time: datetime, newest: int) -> int:
        """The first version that was committed at this time, or after it."""
        if time > datetime.now(UTC):
            raise self.bad_start("the time is in the future")
        versions = sorted(int(found[1]) for name in self._names() if (found := LOG.match(name)) and found[2] == "json")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            # A clock may have been set back: a version is at least as late as those before it.
            times = accumulate(pool.map(self._time, versions), max)
            wanted = milliseconds(time)
            first = next((one for one, at in zip(versions, times, strict=True) if at >= wanted), newest + 1)
        if versions and first == versions[0] > 0:
            raise self.bad_start(f"the table's log reaches back to version {first} only, which is later than the time")
        return first

    def _time(self, version: int) -> int:
        """When a version was committed, in milliseconds."""
        _, actions = self._actions(version) or ("", [])
        told: dict[str, Any] = next(_of(actions, "commitInfo"), {})
        found = told.get("inCommitTimestamp") or told.get("timestamp")
        return found if isinstance(found, int) else 0

    # Version by version.

    def check_same(self, position: Position) -> None:
        for version in [one for one in self._changes if one < position.version]:
            del self._changes[version]  # it will not be asked for again
        stamp = self._stamp(position.version)
        if stamp is not None and stamp == position.stamp:
            return
        newest = self.newest()
        if newest.table != position.table:
            raise self.replaced()
        if newest.version < position.version or (stamp is not None and position.stamp):
            raise self.set_back(position.version)
        if stamp is None and newest.version > position.version and not self._has(position.version + 1):
            raise self.history_lost(position.version)

    def change(self, position: Position) -> Change:
        found = next(self._from(position.table, position.version), None)
        if found is None:
            raise self.history_lost(position.version)
        return found

    def changes(self, position: Position) -> Iterator[Change]:
        return self._from(position.table, position.version + 1)

    def _from(self, table: str, version: int) -> Iterator[Change]:
        """Versions, as long as there is a next one. The log is cleaned from its beginning, so that is the newest."""
        with ThreadPoolExecutor(AT_ONCE) as pool:  # it has no thread before the first task
            count = 1
            while True:
                versions = range(version, version + count)
                missing = [one for one in versions if one not in self._changes]
                fetch = pool.map if len(missing) > 1 else map
                read = dict(zip(missing, fetch(self._actions, missing), strict=True))
                for one in versions:
                    if one in read:
                        actions = read[one]
                        if actions is None:
                            return
                        self._changes[one] = self._change(table, one, *actions)
                    yield self._changes[one]
                version, count = version + count, min(count * 4, AT_ONCE)

    def _change(self, table: str, version: int, stamp: str, actions: Sequence[Mapping[str, Any]]) -> Change:
        types = {one["name"]: one["type"] for one in (self._columns or {"fields": ()})["fields"]}
        files = [
            self._file(
                one["path"],
                one["size"],
                {name: value_of(text, types.get(name)) for name, text in (one.get("partitionValues") or {}).items()},
            )
            for one in _of(actions, "add")
            if one.get("dataChange", True)
        ]
        return Change(version, files, stamp, next(self._troubles(table, version, actions), None))

    def _troubles(self, table: str, version: int, actions: Sequence[Mapping[str, Any]]) -> Iterator[FencepostError]:
        """Why a version is not an addition to the table that the job reads."""
        for told in _of(actions, "metaData"):
            if told["id"] != table:
                yield self.replaced()
            if why := _unknown(1, (), told.get("configuration") or {}):
                yield self.unfit(why)
        for told in _of(actions, "protocol"):
            if why := _unknown(told["minReaderVersion"], told.get("readerFeatures") or (), {}):
                yield self.unfit(why)
        operation = next((str(one.get("operation")) for one in _of(actions, "commitInfo")), "unknown operation")
        added, removed = (
            [one for one in _of(actions, kind) if one.get("dataChange", True)] for kind in ("add", "remove")
        )
        if removed or (added and operation == "RESTORE"):
            yield self.rewritten(version, operation)
        if any(one.get("deletionVector") for one in added):
            yield self.unfit(VECTORS)
        for told in _of(actions, "metaData"):
            if (misfit := self._misfit(version, _columns(told["schemaString"]))) is not None:
                yield misfit

    def _misfit(self, version: int, columns: Mapping[str, Any]) -> FencepostError | None:
        """A version whose columns are not among those that the job was started with."""
        if self._columns is None or extends(self._columns, columns):
            return None
        names = ", ".join(new_names(columns, self._columns)[:3])
        return self.columns_changed(version, f"{names} is new, or of another type")

    def _file(self, path: str, size: int, values: Mapping[str, Any]) -> AddedFile:
        name = unquote(path)
        return AddedFile(name if "://" in name or name.startswith("/") else f"{self._folder.uri}/{name}", size, values)

    # The log's files.

    def _stamp(self, version: int) -> str | None:
        """What tells a version from another one with its number; None if its file is gone."""
        with self._told():
            head = self._folder.read(path_of(version), HEAD_BYTES) if version >= 0 else None
        return None if head is None else stamp_of(head)

    def _has(self, version: int) -> bool:
        with self._told():
            return self._folder.sizes([path_of(version)]) != [None]

    def _actions(self, version: int) -> tuple[str, list[dict[str, Any]]] | None:
        """A version's stamp, and what its file says; None if there is none."""
        with self._told():
            data = self._folder.read(path_of(version))
        if data is None:
            return None
        try:
            return stamp_of(data), [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError:
            raise self.silent(f"version {version} is damaged in its log") from None

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Silent as error:
            raise self.silent(str(error)) from None


FOLDER = "_delta_log"
HEAD_BYTES = 4096
"""Enough to tell two versions apart: they begin with their times, or with random names of files."""
LOG = re.compile(r"(\d{20})\.(json|checkpoint\..*)$")
"""Versions and checkpoints in the log."""


def stamp_of(data: bytes) -> str:
    """Of the beginning of a version's file."""
    return digest(data[:HEAD_BYTES])[:16]


def path_of(version: int) -> str:
    """The file of a version."""
    return f"{FOLDER}/{version:020}.json"


def _of(actions: Iterable[Mapping[str, Any]], kind: str) -> Iterator[Any]:
    return (one[kind] for one in actions if kind in one)


def _unknown(version: int, features: Iterable[str], settings: Mapping[str, str]) -> str | None:
    """What a table uses that would make us read it wrongly; None if there is nothing."""
    if settings.get(COLUMN_MAPPING, "none") != "none":
        return f"it maps its columns to other names in the data files ({COLUMN_MAPPING})"
    if version > 3:
        return f"it needs version {version} of Delta's readers"
    strangers = sorted(set(features) - READER_FEATURES)
    return f"it uses the table feature {strangers[0]}" if strangers else None


def _columns(text: str) -> dict[str, Any]:
    """A table's columns: names and types, in the JSON of Spark's schemas."""
    found: dict[str, Any] = _bare(json.loads(text))
    return found


def _bare(told: Any) -> Any:
    """Without comments, and nullable: a column may be missing in old files."""
    if isinstance(told, list):
        return [_bare(one) for one in told]
    if not isinstance(told, dict):
        return told
    found = {name: _bare(value) for name, value in told.items() if name != "metadata"}
    found |= {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in told}
    return {**found, "metadata": {}} if "metadata" in told else found


def value_of(text: str | None, kind: Any) -> Any:
    """A partition's value from the log, where all values are texts; an empty one is NULL."""
    if not text:
        return None
    if isinstance(kind, str) and kind.startswith("decimal"):
        return Decimal(text)
    return PARSE.get(kind, str)(text)


def _utc(text: str) -> datetime:
    """Without a zone it is UTC: so `deltalake` writes and reads them."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


PARSE: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("long", "integer", "short", "byte"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": lambda text: text == "true",
    "date": date.fromisoformat,
    "timestamp": _utc,
    "timestamp_ntz": lambda text: _utc(text).replace(tzinfo=None),
    "binary": lambda text: text.encode("latin-1"),
}
