"""The `file:` class of the jar: a name is taken once, and what is renamed is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

pytestmark = pytest.mark.spark


@pytest.fixture
def files(spark: Any) -> Any:
    """A FileContext as Spark's checkpoint manager makes one."""
    jvm = spark._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    conf.set("fs.AbstractFileSystem.file.impl", "fencepost.DurableFs")
    return jvm.org.apache.hadoop.fs.FileContext.getFileContext(jvm.java.net.URI("file:///"), conf)


def rename(spark: Any, files: Any, source: Path, target: Path, how: str) -> None:
    """Rename with one of Hadoop's options."""
    jvm = spark._jvm
    options = spark.sparkContext._gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 1)
    options[0] = jvm.org.apache.hadoop.fs.Options.Rename.valueOf(how)
    path = jvm.org.apache.hadoop.fs.Path
    files.rename(path(str(source)), path(str(target)), options)


def test_a_rename_never_replaces_a_file(spark: Any, files: Any, tmp_path: Path) -> None:
    """Hadoop's own class checks, then renames; the check can be late, `link` cannot."""
    taken, second = tmp_path / "offsets", tmp_path / "temp"
    taken.write_text("first")
    second.write_text("second")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        rename(spark, files, second, taken, "NONE")
    assert ("first", "second") == (taken.read_text(), second.read_text())
    second_name = tmp_path / "free"
    rename(spark, files, second, second_name, "NONE")
    assert ("second", False) == (second_name.read_text(), second.exists())


def test_a_rename_that_may_replace_does(spark: Any, files: Any, tmp_path: Path) -> None:
    taken, second = tmp_path / "metadata", tmp_path / "temp"
    taken.write_text("first")
    second.write_text("second")
    rename(spark, files, second, taken, "OVERWRITE")
    assert ("second", False) == (taken.read_text(), second.exists())
