"""Where the data files of a table lie, and what can be done to them there: local disk, or a store the library knows.

On a local disk everything is durable when a method returns: the library itself never asks the disk for that. Never lets
a path be chosen by a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from fencepost.store.local import make_folder, sync_folder
from fencepost.store.staging import sync_file

AT_ONCE = 16
"""Requests at the same time, where each takes its time."""


def local_path(location: str, io: FileIO) -> Path | None:
    """The path of a file on this machine; None if it is elsewhere."""
    scheme, _, path = PyArrowFileIO.parse_location(location, io.properties)
    return Path(path) if scheme == "file" else None


def sync(locations: Iterable[str], io: FileIO) -> None:
    """Make files on this machine durable, with their names."""
    paths = [path for location in locations if (path := local_path(location, io)) is not None]
    for path in paths:
        sync_file(path)
    for folder in {path.parent for path in paths}:
        sync_folder(folder)


def at_once(function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
    """The results for each, several at the same time if there are several."""
    if len(arguments[0]) <= 1:
        return list(map(function, *arguments))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, *arguments))


@dataclass(frozen=True, slots=True)
class DataLocation:
    """A table's folder for data files."""

    root: str
    io: FileIO

    def of(self, path: str) -> str:
        """The whole location of a path."""
        return f"{self.root}/{path}"

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        """A stream for a new file."""
        if (here := local_path(self.of(path), self.io)) is not None:
            make_folder(here.parent)
        with self.io.new_output(self.of(path)).create(overwrite=True) as stream:
            yield stream

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """The sizes of files; None for one that is not there."""
        return at_once(self._size, paths)

    def _size(self, path: str) -> int | None:
        try:
            return len(self.io.new_input(self.of(path)))
        except FileNotFoundError:
            return None

    def delete(self, paths: Iterable[str]) -> None:
        """Those that are gone already are fine."""
        for path in paths:
            with suppress(FileNotFoundError):
                self.io.delete(self.of(path))

    def names_in(self, folder: str) -> list[str]:
        """The files in a folder."""
        scheme, netloc, path = PyArrowFileIO.parse_location(self.of(folder), self.io.properties)
        selector = fs.FileSelector(path, allow_not_found=True)
        found = self._file_system(scheme, netloc).get_file_info(selector)
        return sorted(one.base_name for one in found if one.type is fs.FileType.File)

    def _file_system(self, scheme: str, netloc: str) -> Any:
        if isinstance(self.io, PyArrowFileIO):
            return self.io.fs_by_scheme(scheme, netloc)
        if hasattr(self.io, "get_fs"):  # fsspec, where somebody chose it
            return fs.PyFileSystem(fs.FSSpecHandler(self.io.get_fs(scheme)))
        raise pa.ArrowNotImplementedError("files of this store cannot be listed")
