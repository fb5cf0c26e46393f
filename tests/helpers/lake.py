"""Delta and Iceberg tables as their readers see them, and a contract that both formats keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fencepost_proof.checkers.readers import in_delta, in_iceberg
from fencepost_proof.targets import catalog_of

from fencepost.connectors.delta.sink import Delta
from fencepost.connectors.iceberg.sink import Iceberg

TABLE = "shop.words"


def delta(folder: Path, **settings: Any) -> Delta:
    """The table of a folder."""
    return Delta(folder / "words", name="words", **settings)


def iceberg(folder: Path, **settings: Any) -> Iceberg:
    """The same, in a catalog of the folder's own."""
    return Iceberg(TABLE, catalog=catalog_of(folder), name="words", **settings)


def rows_in_delta(folder: Path, columns: str = "k, v") -> list[tuple[Any, ...]]:
    """By its log and its files, without the library."""
    return in_delta(str(folder / "words"), columns)


def rows_in_iceberg(folder: Path, columns: str = "k, v") -> list[tuple[Any, ...]]:
    """By a scan."""
    return in_iceberg(json.dumps({"catalog": catalog_of(folder), "table": TABLE}), columns)
