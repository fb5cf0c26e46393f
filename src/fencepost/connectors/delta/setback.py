"""Was a table set back behind one of our commits? A RESTORE takes rows back, and leaves the mark as it is.

    41  ours: epoch 7
    42  RESTORE to 40        rows of epoch 7 are gone
    43  RESTORE to 41        and are there again

Reads what commits say about themselves, each once: in a running job those since the last look, at a start those since
our newest commit. If the log does not reach back that far, only what it still says can be noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.connectors.delta.log import OURS, Log
from fencepost.connectors.table.mark import Mark

ACCEPT = "fencepost.accept_restore"
"""A table property: the version of a commit that took rows back, whose loss a person accepts."""
STEP = 64
"""Commits that are read at once when looking for ours, at first."""

Held = tuple[str, str, Mark]
"""Job, sink, and the mark."""
_Key = tuple[Any, ...]
"""Job, sink, lineage, generation, epoch."""


class History:
    """What the commits of one table say, as far as it concerns us."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._low = self._high = -1
        """Versions from `low` (itself not) to `high` were read."""
        self._ours: dict[_Key, int] = {}
        self._backwards: dict[int, tuple[str, int | None]] = {}
        """By version: the operation, and the version that it went back to, if it says so."""

    def forget(self) -> None:
        """Another table may be here now."""
        self._low = self._high = -1
        self._ours.clear()
        self._backwards.clear()

    def note(self, held: Held, version: int) -> None:
        """A commit of ours need not be read."""
        self._ours[_key(held)] = version
        if self._high < 0:
            self._low = self._high = version
        elif self._high == version - 1:
            self._high = version

    def setback(self, held: Held, version: int, properties: Mapping[str, str], table: str) -> str | None:
        """How the table was set back behind our commit, for people, as of a version; None if it was not."""
        ours = self._find(held, version)
        at = version
        while (found := max((one for one in self._backwards if ours < one <= at), default=None)) is not None:
            operation, to = self._backwards[found]
            if properties.get(ACCEPT) == str(found):
                return None
            if to is None or to < ours:
                where = f" to version {to}" if to is not None else ""
                return (
                    f"version {found} took it back{where} ({operation}). To accept that: "
                    f"{table}.alter.set_table_properties({{{ACCEPT!r}: '{found}'}}, raise_if_not_exists=False)"
                )
            at = to  # what the table held then: was that set back?
        return None

    def version_of(self, key: _Key, version: int) -> int | None:
        """The version of a commit of ours, as of a version; None if the log does not have it."""
        self._look_for(key, version)
        return self._ours.get(key)

    def _find(self, held: Held, version: int) -> int:
        """The version of our commit; if the log does not have it any more, the one before the oldest that it has."""
        self._look_for(_key(held), version)
        return self._ours.get(_key(held), self._low)

    def _look_for(self, key: _Key, version: int) -> None:
        if self._high < 0:
            self._low = self._high = version
        if self._high < version:
            self._read(self._high + 1, version)
            self._high = version
        step = STEP
        while key not in self._ours and self._low >= 0:
            start = max(0, self._low - step + 1)
            is_whole = self._read(start, self._low)
            self._low = start - 1
            step *= 2
            if not is_whole:
                break

    def _read(self, first: int, last: int) -> bool:
        """Is all of it still there?"""
        found = self._log.infos(range(first, last + 1))
        for version, info in sorted(found.items()):
            about = info.get(OURS)
            if isinstance(about, dict):
                key = tuple(about.get(name) for name in ("job", "sink", "lineage", "generation", "epoch"))
                self._ours[key] = version
            operation = str(info.get("operation", ""))
            if operation in {"RESTORE", "CLONE"} or "REPLACE TABLE" in operation:
                self._backwards[version] = (operation, _target(operation, info.get("operationParameters")))
        return len(found) == last + 1 - first


def _target(operation: str, parameters: Any) -> int | None:
    """A RESTORE to a time does not say which version that was."""
    text = str(parameters.get("version")) if operation == "RESTORE" and isinstance(parameters, dict) else ""
    return int(text) if text.isdigit() else None


def _key(held: Held) -> _Key:
    job, sink, mark = held
    return job, sink, mark.lineage, mark.generation, mark.epoch
