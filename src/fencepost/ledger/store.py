"""What fencepost needs of the place that holds a checkpoint.

A store that cannot create a file exclusively and whole cannot carry a ledger: it would let two drivers both decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Unanswered(OSError):
    """The store did not answer: whether it did what it was asked is not known. Ask by reading; never guess."""


class Store(Protocol):
    """Files under one root, named by relative paths with `/`."""

    @property
    def root(self) -> str:
        """For people and for Spark: the path of the checkpoint."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file, whole and durable; False if the name is taken. Two callers never both get True.

        `Unanswered` if it may be there or not.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, whole and durable, over whatever is there."""

    def read(self, name: str) -> bytes | None:
        """The whole file; None if it is not there."""

    def expect(self, names: Iterable[str]) -> None:
        """These files will be read next, each once: a store that is far away may fetch them together."""

    def stamp(self, name: str) -> str | None:
        """Something that another file of the same name will not have; None if it is not there."""

    def list(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none if there is no such folder."""

    def sweep(self, folder: str) -> None:
        """Remove what writes that died left half made in a folder, long enough ago not to be somebody's now."""

    def delete(self, name: str) -> None:
        """Remove a file or a whole folder; gone already is fine."""

    def unlink(self, name: str) -> None:
        """Remove one file; gone already is fine. An object store need not look first what it is."""
