"""Transactional ids: who opened a transaction can be read off its name.

fencepost.<job>.<lineage>.<writer>.<sink>-<slot>

An id belongs to one slot of one sink of one writer, so no other driver and no other job ever opens a transaction under
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

PREFIX = "fencepost"


@dataclass(frozen=True, slots=True)
class Owned:
    """What an id says about its owner."""

    id: str
    prefix: str
    job: str
    lineage: str
    """The first eight characters."""
    writer: int
    sink: str
    slot: str


def name(prefix: str, job: str, lineage: str, writer: int, *, sink: str, slot: str) -> str:
    """The id of one slot."""
    return f"{prefix}.{_quoted(job)}.{lineage[:8]}.{writer}.{_quoted(sink)}-{slot}"


def read(transactional_id: str) -> Owned | None:
    """The owner of an id, if it is one of fencepost's."""
    parts = transactional_id.rsplit(".", 4)
    if len(parts) != 5 or not parts[3].isdigit() or not re.fullmatch(r"[0-9a-f]{8}", parts[2]):
        return None
    sink, dash, slot = parts[4].rpartition("-")
    if not dash:
        return None
    return Owned(transactional_id, parts[0], unquote(parts[1]), parts[2], int(parts[3]), unquote(sink), slot)


def _quoted(text: str) -> str:
    """Without a dot, which divides the parts."""
    return quote(text, safe=":").replace(".", "%2E")
