"""Other functions in the place of the protocol's: for sabotage, and to compute each value only once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

from fencepost.protocol import append
from fencepost.protocol.order import State, advance
from fencepost.protocol.records import Record, encode
from fencepost_proof.model import check

Swap = tuple[ModuleType | type, str, Any]


@contextmanager
def swapped(*swaps: Swap) -> Iterator[None]:
    """Put other functions in the place of the protocol's while the block runs."""
    before = [(module, name, getattr(module, name)) for module, name, _ in swaps]
    try:
        for module, name, value in swaps:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)


def _remembered_advance() -> Any:
    after: dict[bytes, State] = {}

    def advanced(state: State, record: Record, data: bytes) -> State:
        # The bytes name the record before them by its sum, and with it the whole chain.
        if data not in after:
            after[data] = advance(state, record, data)
        return after[data]

    return advanced


def remembered() -> tuple[Swap, ...]:
    """The protocol's own encode, decode and fold, each value computed once: most histories write the same records."""
    check.folded.cache_clear()  # a sabotaged order table must not meet states of the real one
    return (
        (append, "encode", lru_cache(maxsize=100_000)(encode)),
        (append, "decode", check.decoded),
        (append, "advance", _remembered_advance()),
        (append, "fold", lambda chain: check.folded(tuple(data for _, data in chain))),
    )
