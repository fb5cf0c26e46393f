"""One look at a folder of a remote store: one listing, which answers whatever is asked of names after it.

Never answers for bytes: a file is read from the store, and may be gone by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from fencepost.ledger.remote import Found, Remote


class Seen(Remote):
    """A remote whose names below one folder are as they were. For reading: what is written later does not show."""

    def __init__(self, remote: Remote, root: str) -> None:
        self._remote = remote
        self._root = root
        self._files = {found.name: found for found in remote.below(root)}
        self._names = sorted(self._files)
        self._inside: dict[str, dict[str, Found]] = {}
        """By folder, by name."""
        for found in self._files.values():
            self._note(found)

    def _note(self, found: Found) -> None:
        folder, _, name = found.name.rpartition("/")
        known = folder in self._inside
        self._inside.setdefault(folder, {})[name] = Found(
            name, found.is_folder, found.size, found.changed_s, found.stamp
        )
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
        inside = self._inside.get(name, {})
        return [inside[one] for one in sorted(inside)]

    def below(self, url: str) -> Sequence[Found]:
        """All files that were in a folder and in its folders."""
        name = self._way(url)
        if name is None:
            return self._remote.below(url)
        start = f"{name}/" if name else ""
        found = []
        for index in range(bisect_left(self._names, start), len(self._names)):
            one = self._names[index]
            if not one.startswith(start):
                break
            known = self._files[one]
            found.append(Found(one[len(start) :], False, known.size, known.changed_s, known.stamp))
        return found

    def _way(self, url: str) -> str | None:
        """From the folder to a URL; None if it leads elsewhere."""
        if url == self._root:
            return ""
        return url[len(self._root) + 1 :] if url.startswith(f"{self._root}/") else None

    def create(self, url: str, data: bytes) -> bool:
        """As the store does."""
        return self._remote.create(url, data)

    def replace(self, url: str, data: bytes) -> None:
        """As the store does."""
        self._remote.replace(url, data)

    def read(self, url: str) -> bytes | None:
        """What the store has now."""
        return self._remote.read(url)

    def delete(self, url: str) -> None:
        """As the store does."""
        self._remote.delete(url)

    def fetch(self, url: str, to: Path) -> None:
        """What the store has now."""
        self._remote.fetch(url, to)

    def send(self, path: Path, url: str) -> None:
        """As the store does."""
        self._remote.send(path, url)
