"""A path that may lead to another machine.

    place("checkpoints/orders")          pathlib's own Path
    place("s3a://bucket/orders")         a RemotePath: the same names for what it shares with Path

A RemotePath is no os.PathLike: whatever would take it for a local file raises instead of looking in the wrong place.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

from fencepost.errors import BadConfig, Where
from fencepost.ledger.local import LocalStore
from fencepost.ledger.patience import Patient
from fencepost.ledger.remote import Found, Remote, RemoteStore, together
from fencepost.ledger.seen import Seen
from fencepost.ledger.store import Store

T = TypeVar("T")
R = TypeVar("R")

SCHEMES = ("hdfs", "s3a")


class Stat(NamedTuple):
    """What a RemotePath tells of its file, by the names that os.stat has."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """A file or folder on HDFS or an object store, read by the methods that Path has."""

    url: str
    _known: Found | None = field(default=None, compare=False, repr=False)
    """From a listing, which need not be asked again."""
    _seen: Remote | None = field(default=None, compare=False, repr=False)
    """One look at a folder above it, which answers in the store's place."""

    def __truediv__(self, more: str | PurePosixPath) -> RemotePath:
        """Below it."""
        text = str(more).strip("/")
        return RemotePath(f"{self.url}/{text}", None, self._seen) if text not in ("", ".") else self

    def __str__(self) -> str:
        """The URL."""
        return self.url

    def as_posix(self) -> str:
        """The URL."""
        return self.url

    @property
    def name(self) -> str:
        """Its last part."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """Its last part without the ending."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """Its ending."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder that it is in."""
        return RemotePath(self.url.rpartition("/")[0], None, self._seen)

    def with_name(self, name: str) -> RemotePath:
        """Another one beside it."""
        return self.parent / name

    def absolute(self) -> RemotePath:
        """It always is."""
        return self

    def resolve(self) -> RemotePath:
        """There are no links."""
        return self

    def is_relative_to(self, other: object) -> bool:
        """Is it the other one, or below it?"""
        return isinstance(other, RemotePath) and (self.url == other.url or self.url.startswith(f"{other.url}/"))

    def exists(self) -> bool:
        """Is there anything?"""
        return self._look() is not None

    def is_file(self) -> bool:
        """Is there a file?"""
        found = self._look()
        return found is not None and not found.is_folder

    def is_dir(self) -> bool:
        """Is there a folder? On an object store: is anything below it?"""
        found = self._look()
        return found is not None and found.is_folder

    def stat(self) -> Stat:
        """Size and time of change, by the store's clock."""
        found = self._look()
        if found is None:
            raise FileNotFoundError(2, "No such file", self.url)
        return Stat(found.size, found.changed_s)

    def read_bytes(self) -> bytes:
        """All of it."""
        data = self._remote.read(self.url)
        if data is None:
            raise FileNotFoundError(2, "No such file", self.url)
        return data

    def read_text(self) -> str:
        """All of it."""
        return self.read_bytes().decode()

    def open(self, mode: str = "rb") -> BinaryIO:
        """A copy of it, to read: on the disk, not in memory, for it may be large."""
        assert mode == "rb", "what is written there is written whole"
        copy = tempfile.NamedTemporaryFile(prefix="fencepost-")  # noqa: SIM115 - the caller closes it, and it is gone
        try:
            self._remote.fetch(self.url, Path(copy.name))
            return open(copy.name, "rb")
        finally:
            copy.close()

    def iterdir(self) -> Iterator[RemotePath]:
        """What is in it."""
        return (RemotePath(f"{self.url}/{found.name}", found, self._seen) for found in self._remote.list(self.url))

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Files below it, at any depth, whose last parts are like this. Unlike Path's, it finds files only."""
        return self.glob(f"**/{pattern}")

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Files below it that are like this; one listing of all that is below the part without wildcards."""
        fixed, wild = _split(pattern)
        start = self / fixed
        like = _pattern(wild)
        for found in self._remote.below(start.url):
            if like.fullmatch(found.name):
                yield RemotePath(f"{start.url}/{found.name}", found, self._seen)

    def send(self, file: Path) -> None:
        """Copy a local file there, durably, under a name that nobody else uses."""
        self._remote.send(file, self.url)

    def seen(self) -> RemotePath:
        """The same folder as one look shows it: its names are asked for once, its files are read as they are."""
        return self if self._seen else RemotePath(self.url, None, Seen(remote_for(self.url), self.url))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        if not missing_ok and not self.exists():
            raise FileNotFoundError(2, "No such file", self.url)
        self._remote.delete(self.url)

    def _look(self) -> Found | None:
        return self._known or self._remote.look(self.url)

    @property
    def _remote(self) -> Remote:
        return self._seen or remote_for(self.url)


Place: TypeAlias = Path | RemotePath


def place(path: str | os.PathLike[str] | RemotePath) -> Place:
    """The path, wherever it leads."""
    if isinstance(path, RemotePath):
        return path
    text = os.fspath(path)
    return RemotePath(_lowered(text).rstrip("/")) if is_remote(text) else Path(text)


def store_at(path: str | os.PathLike[str] | RemotePath) -> Store:
    """The store whose root is there."""
    where = place(path)
    return RemoteStore(where.url, where._remote) if isinstance(where, RemotePath) else LocalStore(where)


def seen(path: Place) -> Place:
    """The same place, where many names are going to be asked for: far away, as one look shows it."""
    return path.seen() if isinstance(path, RemotePath) else path


def way(path: Place, root: Place) -> str:
    """The way from a folder to what is below it, with `/`."""
    return path.as_posix()[len(root.as_posix()) :].lstrip("/")


def each(root: Place, do: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Do it for each, in order; far away many at a time, for each waits for an answer and none for a processor."""
    return iter(together(do, items)) if isinstance(root, RemotePath) else map(do, items)


def is_remote(path: str) -> bool:
    """Is it a URL of another scheme than `file:`?"""
    return re.match(r"[a-z][a-z0-9+.-]*:/", path, re.IGNORECASE) is not None and not path.startswith("file:/")


def scheme_of(url: str) -> str:
    """`s3a` of `s3a://bucket/orders`."""
    return url.partition(":")[0].lower()


def check_scheme(url: str, job: str | None) -> None:
    """Refuse a store whose exclusive create we do not know, and a URL that would show a key wherever it is printed."""
    scheme = scheme_of(url)
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise BadConfig(
            "key_in_url",
            "The checkpoint's URL has a user or a key before the store's name.",
            where=Where(job=job),
            next="Take it out, and give credentials as settings of Spark (spark.hadoop.fs.s3a.…) or, to commands "
            "without Spark, as boto3 finds them.",
        )
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise BadConfig(
            "unknown_store",
            f"Checkpoints on {scheme}:// are not supported: how such a store creates a file exclusively is not known.",
            where=Where(job=job, path=url),
            next="Use s3a:// with the same bucket." if scheme in ("s3", "s3n") else f"Use a local folder, or {known}.",
        )


def whole_url(url: str, job: str | None) -> str:
    """A checkpoint's URL as it is written everywhere; refused if it names no store, or no folder in it."""
    check_scheme(url, job)
    if not re.match(r"[a-z0-9+.-]+://[^/]+/+[^/]", url, re.IGNORECASE):
        raise BadConfig(
            "no_folder",
            "The checkpoint's URL names no store, or no folder in it.",
            where=Where(job=job, path=url),
            next="Write both: hdfs://namenode:8020/checkpoints/<job>, s3a://bucket/checkpoints/<job>.",
        )
    return re.sub(r"(?<!:)//+", "/", _lowered(url)).rstrip("/")


def _lowered(url: str) -> str:
    """With its scheme in small letters: one store, one way to write it."""
    return scheme_of(url) + url[len(scheme_of(url)) :]


def remote_for(url: str) -> Remote:
    """The way to a store: the Hadoop file system of Spark's session where one runs here, else a client of our own."""
    check_scheme(url, None)
    pyspark: Any = sys.modules.get("pyspark")
    context = pyspark and pyspark.SparkContext._active_spark_context
    if context is not None:
        return _through_spark(context)
    return _through_client(scheme_of(url))


@cache
def _through_spark(context: Any) -> Remote:
    from fencepost.spark.hadoop import HadoopRemote  # noqa: PLC0415 - needs py4j, which comes with pyspark

    return Patient(HadoopRemote(context))


@cache
def _through_client(scheme: str) -> Remote:
    from fencepost.ledger.client import client  # noqa: PLC0415 - needs an extra

    return Patient(client(scheme))


def _split(pattern: str) -> tuple[str, str]:
    """The part before the first wildcard, and the rest."""
    parts = pattern.split("/")
    fixed = next((n for n, part in enumerate(parts) if re.search(r"[*?[]", part)), len(parts) - 1)
    return "/".join(parts[:fixed]), "/".join(parts[fixed:])


@cache
def _pattern(wild: str) -> re.Pattern[str]:
    """As pathlib does: `*` stays within a part, `**/` is any number of parts."""
    parts = [
        "(?:[^/]+/)*" if part == "**" else translate(part)[len("(?s:") : -len(r")\Z")].replace(".*", "[^/]*")
        for part in wild.split("/")
    ]
    text = ""
    for part, then in zip(parts, [*wild.split("/")[1:], None], strict=True):
        text += part if part.endswith(")*") or then is None else f"{part}/"
    return re.compile(text)
