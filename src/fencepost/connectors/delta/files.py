"""The folder of a Delta table: its data files, each of which says itself what a commit has to know about it.

    fp-<lineage>-<writer>/<handle>-<n>.parquet     nothing names it until the log does

Partition values are in the file's own metadata, never in its name: the ledger has the names. Never holds more rows than
`HELD_BYTES`, and never has more than `OPEN` files open, however many partitions an epoch has.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from fencepost.connectors.delta.columns import Column, divided, refuse_nulls, stored
from fencepost.connectors.delta.source import local_folder
from fencepost.connectors.delta.statistics import Skipping, columns_with_nan, statistics_of
from fencepost.connectors.lake.table import DataFile
from fencepost.connectors.table.database import Broken, Denied, Silent
from fencepost.store.local import make_folder, sync_folder
from fencepost.store.staging import sync_file

HELD_BYTES = 64 << 20
"""Rows that wait to become a row group."""
OPEN = 16
"""Data files that are written at the same time."""
GROUP_ROWS = 1 << 20
ABOUT = b"fencepost"
"""Under this key a file says what its footer does not: `{"partition": {…}, "nan": […]}`."""
AT_ONCE = 16
"""Files that are read, or made durable, at the same time."""
CONNECT_S, ANSWER_S, TRIES = 5, 20, 3
"""How long an object store may be silent: the protocol retries by itself."""
PATIENCE = {
    "connect_timeout": f"{CONNECT_S}s",
    "timeout": f"{ANSWER_S}s",
    "retry_timeout": f"{ANSWER_S}s",
    "max_retries": str(TRIES),
}
"""The same for the library, unless the user says otherwise."""
REFUSALS = (
    "accessdenied",
    "invalidaccesskeyid",
    "signaturedoesnotmatch",
    "expiredtoken",
    "invalidtoken",
    "403 ",
    "401 ",
)
"""Words of an object store's answer that mean: a person has to change something. In lower case, without `_`."""


MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\^|]|[\x00-\x1f]")
"""What the library takes for something else in a local path, or fails on."""

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class Folder:
    """The table's folder, local or in an object store; paths are relative to it."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.local = local_folder(uri)
        """None in an object store."""
        self.uri = str(self.local) if self.local is not None else uri.replace("s3a://", "s3://", 1).rstrip("/")
        """As the library takes it."""
        self.options = dict(options) if self.local is not None else {**PATIENCE, **options}
        self._opened: fs.FileSystem | None = None

    def check(self) -> None:
        """Refuse a path that the library cannot follow."""
        if self.local is not None and (found := MISREAD.search(str(self.local))) is not None:
            raise Broken(f"the library cannot follow a path with {found[0]!r} in it")

    @property
    def place(self) -> str:
        """Equal for one folder, whatever path led to it."""
        if self.local is not None:
            return os.path.realpath(self.local)
        scheme, _, rest = self.uri.partition("://")
        return f"{scheme}://{'/'.join(part for part in rest.split('/') if part)}"

    @property
    def _files(self) -> fs.FileSystem:
        """Not the library's own, if there is another way: it stops all threads of Python while it waits."""
        if self._opened is None:
            with told():
                if self.local is not None:
                    self._opened = fs.SubTreeFileSystem(str(self.local), fs.LocalFileSystem())
                elif self.uri.startswith("s3://"):
                    self._opened = fs.SubTreeFileSystem(self.uri.removeprefix("s3://"), _s3(self.options))
                else:
                    self._opened = fs.PyFileSystem(DeltaStorageHandler(self.uri, self.options))
        return self._opened

    def read(self, path: str, most: int | None = None) -> bytes | None:
        """The bytes of a file, or only the first of them; None if it is not there."""
        with told():
            try:
                with self._files.open_input_stream(path) as file:
                    return bytes(file.read(most))
            except FileNotFoundError:
                return None

    def stamp(self, path: str) -> str | None:
        """What tells a file from another one with its name; None if it is not there."""
        with told():
            if self.local is None:
                [found] = self._files.get_file_info([path])
                return f"{found.size}-{found.mtime_ns}" if found.is_file else None
            try:
                there = (self.local / path).stat()
            except FileNotFoundError:
                return None
            return f"{there.st_ino}-{there.st_size}-{there.st_mtime_ns}"

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """In bytes; None for a file that is not there."""

        def size(path: str) -> int | None:
            with told():
                [found] = self._files.get_file_info([path])
                return found.size if found.is_file else None

        return each(size, paths)

    def names(self, folder: str) -> list[str]:
        """The files in a folder; none if there is no such folder."""
        with told():
            found = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return sorted(one.base_name for one in found if one.is_file)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with told():
                try:
                    self._files.delete_file(path)
                except FileNotFoundError:
                    continue

    def create(self, path: str) -> Any:
        """A new file, open for writing; call `sync` after it is closed."""
        with told():
            if self.local is not None:
                make_folder((self.local / path).parent)
            return self._files.open_output_stream(path)

    def remove(self, folder: str) -> None:
        """A folder, with everything in it."""
        with told():
            self._files.delete_dir(folder)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files and their names durable on a local disk; an object store does so before it answers."""
        if self.local is None:
            return
        with told():
            found = [self.local / path for path in paths]
            there = each(_synced, found)  # a disk writes many files in the time of a few
            for folder in {path.parent for path, is_there in zip(found, there, strict=True) if is_there}:
                sync_folder(folder)

    def footer(self, path: str) -> pq.FileMetaData:
        """What a Parquet file says about itself."""
        with told():
            return pq.read_metadata(path, filesystem=self._files)


def each(function: Callable[[Asked], Answered], asked: Sequence[Asked]) -> list[Answered]:
    """The same for all of them, several at a time."""
    if len(asked) < 3:
        return list(map(function, asked))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, asked))


@contextmanager
def told() -> Iterator[None]:
    """Turn a file system's errors into ours: theirs quote URLs."""
    try:
        yield
    except PermissionError:
        raise Denied("access is denied") from None
    except OSError as error:
        text = str(error).replace("_", "").lower()
        if any(word in text for word in REFUSALS) or error.errno in {errno.EROFS, errno.EACCES}:
            raise Denied("the store denies access") from None
        code = errno.errorcode.get(error.errno or 0, "")
        raise Silent(f"its storage failed ({type(error).__name__}{code and ', ' + code})") from None
    except pa.ArrowException as error:
        raise Silent(f"its storage failed ({type(error).__name__})") from None


def _s3(options: Mapping[str, str]) -> fs.S3FileSystem:
    """By the library's names of options; what they do not say, both find in the same places."""
    given = {key.lower().removeprefix("aws_"): value for key, value in options.items()}
    endpoint = given.get("endpoint_url") or given.get("endpoint")
    settings = {
        "access_key": given.get("access_key_id"),
        "secret_key": given.get("secret_access_key"),
        "session_token": given.get("session_token") or given.get("token"),
        "region": given.get("region") or given.get("default_region"),
        "role_arn": given.get("iam_role_arn"),
        "endpoint_override": endpoint,
        "scheme": "http" if endpoint is not None and endpoint.startswith("http://") else None,
        "anonymous": given.get("skip_signature", "").lower() in {"true", "1"} or None,
        "force_virtual_addressing": given.get("virtual_hosted_style_request", "").lower() in {"true", "1"} or None,
    }
    return fs.S3FileSystem(
        **{name: value for name, value in settings.items() if value is not None},
        connect_timeout=CONNECT_S,
        request_timeout=ANSWER_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
        allow_delayed_open=True,  # a small file is one request
    )


def _synced(path: Path) -> bool:
    try:
        sync_file(path)
    except FileNotFoundError:  # a VACUUM, or the log's own cleanup
        return False
    return True


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows become files of a table."""

    columns: Mapping[str, Column]
    partition_by: tuple[str, ...]
    skipping: Skipping


@dataclass(frozen=True, slots=True)
class Addition:
    """A data file as the log names it."""

    file: DataFile
    partition: Mapping[str, str | None]
    statistics: str
    written_ms: int
    schema: pa.Schema
    """Of the file, so without the columns of the partition."""


def addition_of(folder: Folder, file: DataFile, skipping: Skipping) -> Addition:
    """From the file alone, which another process may have written; `Silent` if it is not as it was."""
    found = folder.footer(file.path)
    about = json.loads((found.metadata or {}).get(ABOUT, b"null"))
    if about is None or found.num_rows != file.rows:
        raise Silent(f"data file {file.path} is not as it was written")
    text = statistics_of(found, frozenset(about["nan"]), skipping)
    return Addition(file, about["partition"], text, about["written_ms"], found.schema.to_arrow_schema())


def additions_of(folder: Folder, files: Sequence[DataFile], skipping: Skipping) -> list[Addition]:
    """Of many files, several at a time."""
    return each(lambda file: addition_of(folder, file, skipping), files)


def write(
    folder: Folder, layout: Layout, target_bytes: int, prefix: str, batches: Iterable[pa.RecordBatch]
) -> list[Addition]:
    """Write rows as files `<prefix>-<n>.parquet`, durably; `BadValue` if they do not fit."""
    writing = _Writing(folder, layout, target_bytes, prefix)
    try:
        for batch in batches:
            rows = stored(batch, layout.columns)
            refuse_nulls(rows, layout.columns)
            for values, piece in divided(rows, layout.partition_by):
                writing.add(values, piece)
        return writing.end()
    except BaseException:
        writing.drop()
        raise


@dataclass(slots=True, eq=False)
class _Part:
    """The rows of one partition that wait, and the file that they go to."""

    values: tuple[str | None, ...]
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    file: _File | None = None


class _Writing:
    def __init__(self, folder: Folder, layout: Layout, target_bytes: int, prefix: str) -> None:
        self._folder = folder
        self._layout = layout
        self._target_bytes = target_bytes
        self._prefix = prefix
        self._parts: dict[tuple[str | None, ...], _Part] = {}
        self._open: list[_Part] = []
        """Longest unused first."""
        self._held = 0
        self._written: list[Addition] = []
        self._count = 0

    def add(self, values: tuple[str | None, ...], batch: pa.RecordBatch) -> None:
        part = self._parts.setdefault(values, _Part(values))
        part.waiting.append(batch)
        part.bytes += batch.nbytes
        self._held += batch.nbytes
        while self._held > HELD_BYTES:
            self._flush(max(self._parts.values(), key=lambda one: one.bytes))

    def end(self) -> list[Addition]:
        for part in self._parts.values():
            self._flush(part)
            self._close(part)
        self._folder.sync([one.file.path for one in self._written])
        return self._written

    def drop(self) -> None:
        """Nothing names these files, and nothing will."""
        begun = [part.file for part in self._open if part.file is not None]
        paths = [*(one.file.path for one in self._written), *(file.path for file in begun)]
        with suppress(Silent):
            for file in begun:
                file.abandon()
            self._folder.delete(paths)

    def _flush(self, part: _Part) -> None:
        """One row group."""
        if not part.waiting:
            return
        file = self._file_of(part)
        file.write(pa.Table.from_batches(part.waiting))
        self._held -= part.bytes
        part.waiting, part.bytes = [], 0
        if file.position >= self._target_bytes:
            self._close(part)

    def _file_of(self, part: _Part) -> _File:
        if part.file is not None:
            self._open.remove(part)
        else:
            while len(self._open) >= OPEN:
                self._close(self._open[0])
            path = f"{self._prefix}-{self._count}.parquet"
            self._count += 1
            partition = dict(zip(self._layout.partition_by, part.values, strict=True))
            part.file = _File(self._folder, path, part.waiting[0].schema, partition)
        self._open.append(part)
        return part.file

    def _close(self, part: _Part) -> None:
        if part.file is not None:
            self._open.remove(part)
            file, part.file = part.file, None
            self._written.append(file.finish(self._layout.skipping))


class _File:
    """One Parquet file that is being written."""

    def __init__(self, folder: Folder, path: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> None:
        self.path = path
        self._folder = folder
        self._partition = partition
        self._nan: set[str] = set()
        self._footer: list[pq.FileMetaData] = []
        self._file = folder.create(path)
        with told():
            self._writer = pq.ParquetWriter(self._file, schema, metadata_collector=self._footer)

    @property
    def position(self) -> int:
        with told():
            return int(self._file.tell())

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._nan.update(columns_with_nan(batch))
        with told():
            self._writer.write_table(table, row_group_size=GROUP_ROWS)

    def finish(self, skipping: Skipping) -> Addition:
        written_ms = time.time_ns() // 1_000_000
        about = {"partition": self._partition, "nan": sorted(self._nan), "written_ms": written_ms}
        with told():
            self._writer.add_key_value_metadata({ABOUT: json.dumps(about, ensure_ascii=False).encode()})
            self._writer.close()
            size = self.position
            self._file.close()
        [footer] = self._footer
        file = DataFile(self.path, size, footer.num_rows)
        text = statistics_of(footer, frozenset(self._nan), skipping)
        return Addition(file, self._partition, text, written_ms, self._writer.schema)

    def abandon(self) -> None:
        with told():
            self._file.close()
