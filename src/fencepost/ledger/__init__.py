"""Where the ledger, staged rows and rebuilt log entries live: exclusive, durable, whole files."""

from fencepost.ledger.local import LocalStore
from fencepost.ledger.places import Place, RemotePath, each, place, seen, store_at, way
from fencepost.ledger.store import Store, Unanswered

__all__ = ["LocalStore", "Place", "RemotePath", "Store", "Unanswered", "each", "place", "seen", "store_at", "way"]
