"""What a source is: settings that become a plain streaming DataFrame. No pyspark is imported here."""

from __future__ import annotations

from typing import Any, Protocol


class Source(Protocol):
    """Where records come from."""

    @property
    def name(self) -> str:
        """Letters, digits and underscores; the checkpoint knows the source by it."""

    def load(self, reader: Any) -> Any:
        """Turn a `DataStreamReader` into a DataFrame."""
