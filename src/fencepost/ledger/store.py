"""What fencepost needs of the place that holds a checkpoint.

A store that cannot create a file exclusively and whole cannot carry a ledger: it would let two drivers both decide.
"""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """Files under one root, named by relative paths with `/`."""

    @property
    def root(self) -> str:
        """For people and for Spark: the path of the checkpoint."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file, whole and durable; False if the name is taken. Two callers never both get True."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, whole and durable, over whatever is there."""

    def read(self, name: str) -> bytes | None:
        """The whole file; None if it is not there."""

    def stamp(self, name: str) -> str | None:
        """Something that another file of the same name will not have; None if it is not there."""

    def list(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none if there is no such folder."""

    def sweep(self, folder: str) -> None:
        """Remove what writes that died left half made in a folder, long enough ago not to be somebody's now."""

    def delete(self, name: str) -> None:
        """Remove a file or a whole folder; gone already is fine."""
