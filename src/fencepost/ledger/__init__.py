"""Where the ledger, staged rows and rebuilt log entries live: exclusive, durable, whole files."""

from fencepost.ledger.local import LocalStore
from fencepost.ledger.store import Store

__all__ = ["LocalStore", "Store"]
