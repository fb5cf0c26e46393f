"""A path that may be on another machine.

    place("checkpoints/orders")          pathlib's own Path
    place("s3a://bucket/orders")         a RemotePath, which has many of Path's methods under the same names

A RemotePath is not an os.PathLike: code that expects a local file raises instead of looking in the wrong place.
"""

from __future__ import annotations

import os
import re
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache
from itertools import count, islice, takewhile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, TypeAlias, TypeVar

from fencepost.errors import BadConfig, Where, require
from fencepost.store.base import Found, Remote, RemoteStore, Store, altered, together
from fencepost.store.local import LocalStore
from fencepost.store.retry import patient

T = TypeVar("T")
R = TypeVar("R")

SCHEMES = ("hdfs", "s3a")
Watch: TypeAlias = Callable[[int, int], None]
"""Called after each item, perhaps from another thread: how many are done, of how many."""


class Stat(NamedTuple):
    """What a RemotePath knows about its file, under os.stat's names."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """A file or folder on HDFS or an object store, with Path's methods for reading."""

    url: str
    _known: Found | None = field(default=None, compare=False, repr=False)
    """From a listing, so that the store need not be asked again."""
    _seen: Remote | None = field(default=None, compare=False, repr=False)
    """The store as one listing of a folder above showed it."""

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
        """Its last part without the suffix."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The end of its name, with the dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder that contains it."""
        return RemotePath(self.url.rpartition("/")[0], None, self._seen)

    def with_name(self, name: str) -> RemotePath:
        """Another name in the same folder."""
        return self.parent / name

    def absolute(self) -> RemotePath:
        """A URL always is."""
        return self

    def resolve(self) -> RemotePath:
        """Itself: there are no symbolic links."""
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
        """Is there a folder? On an object store: is there anything below it?"""
        found = self._look()
        return found is not None and found.is_folder

    def stat(self) -> Stat:
        """Size and modification time, by the store's clock."""
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
        """A copy for reading, on disk rather than in memory because it may be large."""
        assert mode == "rb", "remote files are written only as a whole"
        copy = tempfile.NamedTemporaryFile(prefix="fencepost-")  # noqa: SIM115 - the caller closes it, which deletes it
        try:
            self.fetch(Path(copy.name))
            return open(copy.name, "rb")
        finally:
            copy.close()

    def iterdir(self) -> Iterator[RemotePath]:
        """What is in it."""
        return (RemotePath(f"{self.url}/{found.name}", found, self._seen) for found in self._remote.list(self.url))

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Files below it, at any depth, whose last parts match the pattern. Unlike Path's, it finds only files."""
        return self.glob(f"**/{pattern}")

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Files below it that match; takes one listing of everything below the part without wildcards."""
        fixed, wild = _split(pattern)
        start = self / fixed
        like = _pattern(wild)
        for found in self._remote.below(start.url):
            if like.fullmatch(found.name):
                yield RemotePath(f"{start.url}/{found.name}", found, self._seen)

    def fetch(self, to: Path) -> None:
        """Download it."""
        self._remote.fetch(self.url, to)

    def send(self, file: Path) -> None:
        """Upload a local file, durably, under a name that nobody else uses."""
        self._remote.send(file, self.url)

    def seen(self) -> RemotePath:
        """A snapshot of the folder: its names are listed once, its files are still read from the store."""
        return self if self._seen else RemotePath(self.url, None, _seen(self._remote, self.url))

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


def _seen(remote: Remote, root: str) -> Remote:
    """The same remote, with the names below a folder as they are now; later writes do not show. For reading only.

    Never caches bytes: a file is read from the store, and may be gone by then.
    """
    listing = Listing(remote, root)
    return altered(remote, look=listing.look, list=listing.list, below=listing.below)


class Listing:
    """The names below one folder, from one request."""

    def __init__(self, remote: Remote, root: str) -> None:
        self._remote = remote
        self._root = root
        self._files = {found.name: found for found in remote.below(root)}
        self._sorted = sorted(self._files)
        self._inside: dict[str, dict[str, Found]] = {}
        """By folder, by name."""
        for found in self._files.values():
            self._note(found)

    def _note(self, found: Found) -> None:
        folder, _, name = found.name.rpartition("/")
        known = folder in self._inside
        self._inside.setdefault(folder, {})[name] = replace(found, name=name)
        if folder and not known:
            self._note(Found(folder, True, 0, 0.0, ""))

    def look(self, url: str) -> Found | None:
        """What was there."""
        name = self._way(url)
        if name is None:
            return self._remote.look(url)
        if not name:
            return Found(url.rpartition("/")[2], True, 0, 0.0, "") if self._files else None
        folder, _, last = name.rpartition("/")
        return self._inside.get(folder, {}).get(last)

    def list(self, url: str) -> Sequence[Found]:
        """What was in a folder."""
        name = self._way(url)
        if name is None:
            return self._remote.list(url)
        return [found for _, found in sorted(self._inside.get(name, {}).items())]

    def below(self, url: str) -> Sequence[Found]:
        """All files that were in a folder and its subfolders."""
        name = self._way(url)
        if name is None:
            return self._remote.below(url)
        start = f"{name}/" if name else ""
        later = islice(self._sorted, bisect_left(self._sorted, start), None)
        inside = takewhile(lambda one: one.startswith(start), later)
        return [replace(self._files[one], name=one[len(start) :]) for one in inside]

    def _way(self, url: str) -> str | None:
        """The path from the folder to a URL; None if the URL is not below it."""
        if url == self._root:
            return ""
        return url[len(self._root) + 1 :] if url.startswith(f"{self._root}/") else None


def place(path: str | os.PathLike[str] | RemotePath) -> Place:
    """The path as a Path or, for a URL, as a RemotePath."""
    if isinstance(path, RemotePath):
        return path
    text = os.fspath(path)
    return RemotePath(_lowered(text).rstrip("/")) if is_remote(text) else Path(text)


def store_at(path: str | os.PathLike[str] | RemotePath) -> Store:
    """The store with this root."""
    where = place(path)
    return RemoteStore(where.url, where._remote) if isinstance(where, RemotePath) else LocalStore(where)


def seen(path: Place) -> Place:
    """The same place, for looking up many names: if it is remote, a snapshot from one listing."""
    return path.seen() if isinstance(path, RemotePath) else path


def way(path: Place, root: Place) -> str:
    """The relative path from a folder to something below it, with `/`."""
    return path.as_posix()[len(root.as_posix()) :].lstrip("/")


def each(root: Place, do: Callable[[T], R], items: Iterable[T], watch: Watch | None = None) -> Iterator[R]:
    """Call `do` for each item, in order; if `root` is remote, many at a time, as each mostly waits for an answer."""
    if watch is not None:
        items = list(items)
        do = _watched(do, len(items), watch)
    return iter(together(do, items)) if isinstance(root, RemotePath) else map(do, items)


def _watched(do: Callable[[T], R], total: int, watch: Watch) -> Callable[[T], R]:
    watch(0, total)
    done = count(1)

    def one(item: T) -> R:
        result = do(item)
        watch(next(done), total)
        return result

    return one


def is_remote(path: str) -> bool:
    """Is it a URL with a scheme other than `file:`?"""
    return re.match(r"[a-z][a-z0-9+.-]*:/", path, re.IGNORECASE) is not None and not path.startswith("file:/")


def scheme_of(url: str) -> str:
    """`s3a` of `s3a://bucket/orders`."""
    return url.partition(":")[0].lower()


def check_scheme(url: str, job: str | None) -> None:
    """Refuse a store whose exclusive create we do not know, and a URL that would reveal a key when it is printed."""
    scheme = scheme_of(url)
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise BadConfig(
            "key_in_url",
            "The checkpoint's URL contains a user name or a key before the store's name.",
            where=Where(job=job),
            next="Remove it, and provide credentials as Spark settings (spark.hadoop.fs.s3a.…) or, for commands "
            "without Spark, where boto3 looks for them.",
        )
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise BadConfig(
            "unknown_store",
            f"Checkpoints on {scheme}:// are not supported: fencepost cannot create files exclusively there.",
            where=Where(job=job, path=url),
            next="Use s3a:// with the same bucket." if scheme in ("s3", "s3n") else f"Use a local folder, or {known}.",
        )


def whole_url(url: str, job: str | None) -> str:
    """A checkpoint's URL in its one normal form; refused if it names no store, or no folder in the store."""
    check_scheme(url, job)
    if not re.match(r"[a-z0-9+.-]+://[^/]+/+[^/]", url, re.IGNORECASE):
        raise BadConfig(
            "no_folder",
            "The checkpoint's URL names no store, or no folder in the store.",
            where=Where(job=job, path=url),
            next="Give both: hdfs://namenode:8020/checkpoints/<job> or s3a://bucket/checkpoints/<job>.",
        )
    return re.sub(r"(?<!:)//+", "/", _lowered(url)).rstrip("/")


def _lowered(url: str) -> str:
    """With its scheme in lower case, so that a store has one spelling."""
    return scheme_of(url) + url[len(scheme_of(url)) :]


def provide(provider: Callable[[], Remote | None]) -> None:
    """Register a better way than our own clients: Spark's, while a session runs in this process."""
    global _provider  # noqa: PLW0603 - one Spark per process
    _provider = provider


_provider: Callable[[], Remote | None] = lambda: None  # noqa: E731 - until one is registered


def remote_for(url: str) -> Remote:
    """The client for a store: the provided one, else our own."""
    check_scheme(url, None)
    return _provider() or _client(scheme_of(url))


@cache
def _client(scheme: str) -> Remote:
    """Never weaker than Spark's: a create is exclusive here too, as repairing a checkpoint appends to its ledger."""
    package, extra = ("boto3", "s3") if scheme == "s3a" else ("requests", "hdfs")
    require("no_store_client", package, extra=extra, purpose=f"to reach {scheme}:// without Spark")
    if scheme == "s3a":
        from fencepost.store.s3 import S3Remote  # noqa: PLC0415 - one of the two is enough

        return patient(S3Remote())
    from fencepost.store.hdfs import WebHdfsRemote  # noqa: PLC0415 - as above

    return patient(WebHdfsRemote())


def _split(pattern: str) -> tuple[str, str]:
    """The part before the first wildcard, and the rest."""
    parts = pattern.split("/")
    fixed = next((n for n, part in enumerate(parts) if re.search(r"[*?[]", part)), len(parts) - 1)
    return "/".join(parts[:fixed]), "/".join(parts[fixed:])


@cache
def _pattern(wild: str) -> re.Pattern[str]:
    """As in pathlib, `*` matches within one part and `**/` any number of parts."""
    parts = [
        "(?:[^/]+/)*" if part == "**" else translate(part)[len("(?s:") : -len(r")\Z")].replace(".*", "[^/]*")
        for part in wild.split("/")
    ]
    text = ""
    for part, then in zip(parts, [*wild.split("/")[1:], None], strict=True):
        text += part if part.endswith(")*") or then is None else f"{part}/"
    return re.compile(text)
