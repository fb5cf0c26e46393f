"""What lies in a folder, in one call: the same lines from every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.spark

NAMES = ["a b", "a%09b", "a", "ä", "b.arrow"]


class Folder:
    """A folder and the three questions about it."""

    def __init__(self, spark: Any, url: str) -> None:
        self._path = spark._jvm.org.apache.hadoop.fs.Path
        self.root = self._path(url)
        self.system = self.root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self.listing = spark._jvm.fencepost.Listing

    def at(self, name: str) -> Any:
        return self._path(self.root, name)

    def write(self, name: str, text: str) -> None:
        file = self.system.create(self.at(name), True)
        file.write(bytearray(text.encode()))
        file.close()

    def names(self, name: str = ".") -> list[list[str]]:
        return lines(self.listing.names(self.system, self.at(name)))

    def below(self, name: str = ".") -> list[list[str]]:
        return lines(self.listing.below(self.system, self.at(name)))

    def stat(self, name: str) -> list[list[str]]:
        return lines(self.listing.stat(self.system, self.at(name)))


def lines(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.split("\n")[:-1]]


@pytest.fixture(params=["local", "s3a", "hdfs"])
def folder(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Folder:
    """Empty, and not made yet."""
    kind = request.param
    if kind == "local":
        return Folder(spark, f"file://{tmp_path}/root")
    return Folder(spark, request.getfixturevalue("bucket" if kind == "s3a" else "hdfs_folder") + "/root")


def test_a_listing_has_names_kinds_and_sizes_in_order(folder: Folder) -> None:
    assert ([], [], []) == (folder.names(), folder.below(), folder.stat("a"))
    for name in NAMES:
        folder.write(f"sub/{name}", name)
    folder.write("last", "")
    assert [("last", "f", "0"), ("sub", "d")] == [
        tuple(line[:3]) if line[1] == "f" else tuple(line[:2]) for line in folder.names()
    ]
    inside = folder.names("sub")
    assert sorted(NAMES) == [unquote(name) for name, *_ in inside]
    assert [len(name.encode()) for name in sorted(NAMES)] == [int(size) for _, _, size, *_ in inside]
    assert ["last", *(f"sub/{name}" for name in sorted(NAMES))] == [unquote(name) for name, *_ in folder.below()]
    assert {"f"} == {kind for _, kind, *_ in folder.below()}
    assert [] == folder.names("last"), "a file has no entries"
    assert [inside[0]] == folder.stat("sub/a")


def test_the_stamp_of_a_file_changes_when_it_is_replaced(folder: Folder) -> None:
    folder.write("a", "first")
    [before] = folder.stat("a")
    assert [before] == folder.stat("a")
    folder.write("a", "others")
    [after] = folder.names()
    assert before[4] != after[4]
