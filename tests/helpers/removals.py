"""Epochs of rows that write and remove keys, and what a plain loop over them leaves: for any table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string(), "at": pa.int64(), "v": pa.string(), "gone": pa.bool_()})
"""The key is (a, b); `gone` says which rows remove."""


def epochs(
    seed: int, *, count: int = 6, rows: int = 40, shuffled: bool = False
) -> Iterator[tuple[pa.Table, list[Any]]]:
    """Each epoch as it is staged, many small batches, and the rows (a, b, at, v) that a table then holds, sorted.

    Keys come back, several times in an epoch. If they are shuffled, `at` says what their order was.
    """
    chance = random.Random(seed)
    held: dict[Any, Any] = {}
    for epoch in range(count):
        made = [
            (chance.randrange(4), chance.choice("xyz"), number, f"{epoch}-{number}", chance.random() < 0.4)
            for number in range(epoch * rows, (epoch + 1) * rows)
        ]
        for a, b, at, v, gone in made:
            if gone:
                held.pop((a, b), None)
            else:
                held[a, b] = (a, b, at, v)
        if shuffled:
            chance.shuffle(made)
        batches = [pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True))], SCHEMA) for row in made]
        yield pa.Table.from_batches(batches), sorted(held.values())
