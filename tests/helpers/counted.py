"""A real store that counts what it is asked, and is silent where a test says so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from fencepost.store.base import Remote, Unanswered


class Counted:
    """A store that counts what it is asked."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.asked: Counter[str] = Counter()
        self.silent: set[str] = set()
        """Ends of names whose creation is done and never answered."""
        self.deaf: set[str] = set()
        """Ends of names that are never fetched."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # a copy of it is asked for these, before it has anything
        self.asked[name] += 1
        return getattr(self.remote, name)

    def fetch(self, url: str, to: Path) -> None:
        self.asked["fetch"] += 1
        if any(url.endswith(end) for end in self.deaf):
            raise Unanswered(5, "no answer", url)
        self.remote.fetch(url, to)

    def create(self, url: str, data: bytes) -> bool:
        self.asked["create"] += 1
        created = self.remote.create(url, data)
        if any(url.endswith(end) for end in self.silent):
            raise Unanswered(5, "no answer", url)
        return created
