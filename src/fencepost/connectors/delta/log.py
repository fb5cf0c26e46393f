"""The commits of a Delta table as files: what the library does not tell about them, and their durability.

    _delta_log/00000000000000000041.json     one action a line; most writers begin with what they say about themselves

The library neither makes a commit durable on a local disk nor says which version it became. It numbers its history
wrongly if a commit says nothing about itself, and does not notice that a table was replaced by another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any
from urllib.parse import unquote

from fencepost.connectors.delta.files import Folder, each
from fencepost.connectors.table.database import Silent

FOLDER = "_delta_log"
HEAD_BYTES = 64 << 10
"""What a commit says about itself is at its beginning; the files that it adds may be many."""
RECENT = 100
"""So many commits of before our time are made durable at a start: a driver that died could not do it."""
OURS = "fencepost"
"""Under this name our commits say which epoch they are."""


class Log:
    """The log of one table."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._durable: int | None = None
        """Commits up to this version are."""

    def stamp(self, version: int) -> str | None:
        """What tells a commit from another one with its number; None if its file is gone."""
        return self._folder.stamp(path_of(version))

    def info(self, version: int) -> dict[str, Any] | None:
        """What a commit says about itself; None if its file is gone, nothing if it does not say anything."""
        for most in (HEAD_BYTES, None):
            data = self._folder.read(path_of(version), most)
            if data is None:
                return None
            for line in data.splitlines():
                if b'"commitInfo"' in line and (action := _action(line)) is not None and "commitInfo" in action:
                    return dict(action["commitInfo"])
            if most is not None and len(data) < most:
                break
        return {}

    def infos(self, versions: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The same of many; without those that are gone."""
        asked = list(versions)
        found = zip(asked, each(self.info, asked), strict=True)
        return {version: info for version, info in found if info is not None}

    def find(self, attempt: str, after: int) -> int:
        """The version that one of our commits became."""
        for version in count(after + 1):
            info = self.info(version)
            if info is None:
                raise Silent("a commit that the library reported is not in the log")
            if isinstance(ours := info.get(OURS), dict) and ours.get("attempt") == attempt:
                return version
        raise AssertionError

    def sync(self, version: int) -> None:
        """Make commits durable up to a version, those of others too: after a power cut a gap would end the table.

        For our own also the files that they name. Those of `append` are durable before, but the library writes the
        ones of a merge, and another process may have died before it came here.
        """
        if self._folder.local is None or version == self._durable:
            return
        first = max(0, version - RECENT) if self._durable is None or self._durable > version else self._durable + 1
        paths = [path_of(one) for one in range(first, version + 1)]
        self._folder.sync([*(path for one in paths for path in self._named(one)), *paths])
        self._durable = version

    def sync_checkpoint(self, version: int) -> None:
        """Whatever there is of a checkpoint at this version, durably."""
        start = f"{version:020d}.checkpoint"
        names = [name for name in self._folder.names(FOLDER) if name.startswith(start) or name == "_last_checkpoint"]
        self._folder.sync([f"{FOLDER}/{name}" for name in names])

    def forget(self) -> None:
        """Another table may be here now."""
        self._durable = None

    def _named(self, path: str) -> Iterator[str]:
        """The files that a commit of ours adds; none for one of others."""
        word = f'"{OURS}"'.encode()
        data = self._folder.read(path, HEAD_BYTES)
        if data is not None and word in data and len(data) == HEAD_BYTES:
            data = self._folder.read(path)
        if data is None or word not in data:
            return
        for line in data.splitlines():
            for kind, action in (_action(line) or {}).items():
                if kind in {"add", "cdc"}:
                    yield unquote(action["path"])


def path_of(version: int) -> str:
    """The file of a commit."""
    return f"{FOLDER}/{version:020d}.json"


def _action(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:  # cut off, or damaged: the library says so
        return None
    return found if isinstance(found, dict) else None
