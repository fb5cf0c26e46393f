"""The jar in the tree is what its sources compile to, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
JAR = TREE / "src" / "fencepost" / "spark" / "fencepost.jar"


def test_the_sources_compile_to_the_jar(require: Callable[[str], None]) -> None:
    require("javac")
    built = subprocess.run(
        [sys.executable, str(TREE / "java" / "build.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (0, "") == (built.returncode, built.stderr)


def test_only_classes_for_remote_checkpoints_name_what_spark_moved() -> None:
    """Spark 4.1 moved its streaming to other packages: a class that names one does not link on 4.0, and is not used."""
    with zipfile.ZipFile(JAR) as jar:
        named = {name for name in jar.namelist() if b"org/apache/spark/sql/execution/streaming/" in jar.read(name)}
    assert {"ExclusiveFiles", "ObjectFiles", "OwnedFiles"} == {Path(name).stem.split("$")[0] for name in named}


def test_the_jar_is_small_and_holds_our_package_only() -> None:
    assert JAR.stat().st_size <= 200_000
    with zipfile.ZipFile(JAR) as jar:
        assert jar.testzip() is None
        names = jar.namelist()
    assert len(set(names)) == len(names)
    others = [name for name in names if name != "META-INF/MANIFEST.MF" and not name.startswith("fencepost/")]
    assert [] == others
    sources = {file.stem for file in (TREE / "java" / "fencepost").glob("*.java")}
    assert sources == {Path(name).stem.split("$")[0] for name in names if name.endswith(".class")}
