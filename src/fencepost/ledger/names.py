"""Where a lineage's records are, under its checkpoint."""

from __future__ import annotations


def ledger_folder(lineage: str) -> str:
    """The folder."""
    return f"fencepost/{lineage}/ledger"


def record_name(lineage: str, number: int) -> str:
    """The file of one record: names sort as numbers do."""
    return f"{ledger_folder(lineage)}/{number:020d}.json"
