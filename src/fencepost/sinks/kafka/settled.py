"""What a person said about a decided transaction whose outcome nobody else can tell: a file each, in the checkpoint.

Asked only after the coordinator and the topic; a handle's id is never used twice, so a word holds for one transaction.
"""

from __future__ import annotations

import hashlib

from fencepost.ledger import Place, store_at
from fencepost.sinks.kafka.outcome import Fate

WORDS = {"committed": Fate.COMMITTED, "lost": Fate.ABORTED}


def settle(lineage: Place, handle: str, word: str) -> bool:
    """Note it, once; False if something was said before."""
    return store_at(lineage).create(_name(handle), f"{word}\n{handle}\n".encode())


def said(lineage: Place, handle: str) -> Fate:
    """What was said, if anything."""
    text = (store_at(lineage).read(_name(handle)) or b"").decode()
    return WORDS.get(text.partition("\n")[0], Fate.UNKNOWN)


def _name(handle: str) -> str:
    return f"settled/{hashlib.sha256(handle.encode()).hexdigest()[:32]}"
