"""Where the ledger, staged rows and rebuilt log entries are stored: files created exclusively, durably and whole."""

from fencepost.store.base import Store, Unanswered, read_only
from fencepost.store.local import LocalStore
from fencepost.store.path import Place, RemotePath, each, place, seen, store_at, way

__all__ = [
    "LocalStore",
    "Place",
    "RemotePath",
    "Store",
    "Unanswered",
    "each",
    "place",
    "read_only",
    "seen",
    "store_at",
    "way",
]
