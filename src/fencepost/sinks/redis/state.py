"""The mark as a hash in Redis: the newest epoch that is in, the one that is half-way in, and the newest plain write.

    HGETALL fencepost:mark:orders:words
    lineage 5f… generation 0 epoch 41 handle 5f…-7-41-… writer 7 part ["5f…", 0, 42, "5f…-7-42-…", 3]

Never changed by anything but the script that writes the rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fencepost.sinks.database import Silent
from fencepost.sinks.marks import Mark


@dataclass(frozen=True, slots=True)
class Part:
    """How far an epoch of several chunks is in."""

    mark: Mark
    chunks: int


@dataclass(frozen=True, slots=True)
class State:
    """What one sink of one job has in one Redis."""

    texts: tuple[str, ...] = ("",) * 7
    """As they stand there, in the order of `scripts.FIELDS`; empty is absent."""
    mark: Mark | None = None
    part: Part | None = None
    plain: Mark | None = None
    """The newest rows that were written without a decision."""

    @classmethod
    def read(cls, found: Sequence[bytes | None]) -> State:
        """From the fields; `Silent` if somebody wrote nonsense into them."""
        try:
            texts = tuple((value or b"").decode() for value in found)
            lineage, generation, epoch, handle, writer, half, plain = texts
            number = int(writer or 0)
            mark = Mark(lineage, int(generation), int(epoch), handle, number) if lineage else None
            part = None
            if half:
                *facts, chunks = json.loads(half)
                part = Part(_mark(facts, number), int(chunks))
            return cls(texts, mark, part, _mark(json.loads(plain), number) if plain else None)
        except (ValueError, TypeError) as error:
            raise Silent(f"its mark cannot be read ({type(error).__name__})") from None

    @property
    def newest(self) -> list[Mark]:
        """What a plain write must not be older than."""
        return [mark for mark in (self.mark, self.plain) if mark is not None]

    def touched(self, writer: int) -> State:
        """The same, seen by a writer."""
        return self._with(writer)

    def half_way(self, mark: Mark, chunks: int) -> State:
        """So many chunks of an epoch are in."""
        return self._with(mark.writer, part=Part(mark, chunks))

    def whole(self, mark: Mark) -> State:
        """All of an epoch is in."""
        return self._with(mark.writer, mark=mark, part=None)

    def written(self, mark: Mark) -> State:
        """Rows of an epoch were sent without a decision."""
        return self._with(mark.writer, plain=mark)

    def chunks_of(self, mark: Mark) -> int:
        """How many chunks of this epoch are in."""
        return self.part.chunks if self.part is not None and _facts(self.part.mark) == _facts(mark) else 0

    def _with(self, writer: int, **changes: Any) -> State:
        new = replace(self, **changes)
        whole = [str(fact) for fact in _facts(new.mark)] if new.mark else [""] * 4
        half = json.dumps([*_facts(new.part.mark), new.part.chunks]) if new.part else ""
        return replace(new, texts=(*whole, str(writer), half, json.dumps(_facts(new.plain)) if new.plain else ""))


def _facts(mark: Mark) -> list[str | int]:
    return [mark.lineage, mark.generation, mark.epoch, mark.handle]


def _mark(facts: Sequence[Any], writer: int) -> Mark:
    lineage, generation, epoch, handle = facts
    return Mark(str(lineage), int(generation), int(epoch), str(handle), writer)
