"""Folders on a store that cannot name a whole folder in one step: an object store renames file by file.

    .begun, created exclusively ─► the files ─► the last file, created exclusively ─► .begun goes

Only the last file makes the folder what it is to be; a dead maker's has none, and is nobody's until a person removes
it. Never removes a folder that another maker has claimed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from fencepost.errors import UNCHANGED, BadConfig, Where
from fencepost.ledger import RemotePath, Store, store_at
from fencepost.ledger.patience import surely_created

BEGUN = ".begun"


@dataclass(slots=True)
class Claim:
    """One maker's right to a place. The mistake people make: to take a folder without its last file for a whole one."""

    store: Store
    mark: bytes
    is_over: bool = False
    is_ours: bool = True
    """May what is there be removed? Not once the last file may be there, nor if the claim was taken from us."""

    def finish(self, name: str, data: bytes) -> bool:
        """Create the last file; False if somebody else did, or removed our claim."""
        self.is_ours = False
        if self.store.read(BEGUN) != self.mark:
            return False
        created = surely_created(self.store, name, data)
        self.is_over = True
        return created


@contextmanager
def claimed(place: RemotePath) -> Iterator[Claim | None]:
    """Claim a place, None if there is anything; what is not finished at the end is removed."""
    claim = Claim(store_at(place), uuid.uuid4().hex.encode())
    # First the claim, then the look: whoever looks first may find what came in between.
    if not surely_created(claim.store, BEGUN, claim.mark):
        yield None
        return
    if claim.store.list("") != (BEGUN,):
        claim.store.unlink(BEGUN)
        yield None
        return
    try:
        yield claim
    finally:
        with suppress(OSError):  # what stays is a half one, or one with a file too many that nobody looks at
            if claim.is_over:
                claim.store.unlink(BEGUN)
            elif claim.is_ours and claim.store.read(BEGUN) == claim.mark:
                clear(place)


def clear(place: RemotePath) -> None:
    """Remove all that is there, the claim last: until it is gone nobody else begins."""
    store = store_at(place)
    for name in store.list(""):
        if name != BEGUN:
            store.delete(name)
    store.delete("")


def is_half(place: RemotePath, last: str) -> bool:
    """Was something begun here that has not its last file?"""
    names = store_at(place).list("")
    return BEGUN in names and last not in names


def half_made(place: RemotePath) -> BadConfig:
    """Nobody but a person can say whether its maker lives."""
    return BadConfig(
        "half_made",
        "There is something half made here: its maker died, or is still at it.",
        where=Where(path=str(place)),
        safe=UNCHANGED,
        next="See that nobody is at it (the same command on another machine), remove the folder with the store's own "
        "tools, then repeat the command.",
    )
