"""Build `src/fencepost/spark/fencepost.jar` from `java/fencepost/*.java`, byte for byte the same each time.

It must never ship a jar that its sources do not produce: `--check` builds again and compares.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
JAR = HERE.parent / "src" / "fencepost" / "spark" / "fencepost.jar"
MANIFEST = b"Manifest-Version: 1.0\r\nCreated-By: fencepost\r\n\r\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time a zip can hold


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the fencepost jar.")
    parser.add_argument("--check", action="store_true", help="compare with the jar in the tree, write nothing")
    check: bool = parser.parse_args().check
    try:
        with tempfile.TemporaryDirectory() as folder:
            classes = compile_into(Path(folder))
            data = pack(classes, Path(folder) / "fencepost.jar")
    except BuildError as error:
        print(f"java/build.py: {error}", file=sys.stderr)
        return 1
    if check:
        if not JAR.is_file():
            print(f"java/build.py: {JAR} is missing; run `python java/build.py`.", file=sys.stderr)
            return 1
        if JAR.read_bytes() != data:
            print(
                f"java/build.py: {JAR} is not what java/fencepost/*.java compile to; run `python java/build.py` "
                "(javac 17) and commit the jar.",
                file=sys.stderr,
            )
            return 1
        print("fencepost.jar is up to date.")
        return 0
    JAR.parent.mkdir(parents=True, exist_ok=True)
    new = JAR.with_suffix(".new")
    new.write_bytes(data)
    new.replace(JAR)  # a JVM that runs keeps the jar it opened
    print(f"{JAR} ({len(data)} bytes)")
    return 0


class BuildError(Exception):
    """One sentence for the person at the terminal."""


def compile_into(folder: Path) -> Path:
    javac = shutil.which("javac")
    if javac is None:
        raise BuildError("no JDK found: put the `javac` of a JDK 17 on PATH (a JRE is not enough).")
    classes = folder / "classes"
    classes.mkdir()
    command = [
        javac,
        *("--release", "17", "-g:none", "-encoding", "UTF-8", "-proc:none", "-Xlint:-options", "-nowarn"),
        *("-cp", str(spark_jars() / "*"), "-d", str(classes)),
        *(str(source) for source in sorted((HERE / "fencepost").glob("*.java"))),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"javac failed:\n{result.stdout}{result.stderr}")
    return classes


def spark_jars() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise BuildError("pyspark is not installed in this Python: `pip install pyspark==4.3.0`.")
    jars = Path(found.origin).parent / "jars"
    if not list(jars.glob("spark-sql_2.13-4.3.*.jar")):
        raise BuildError(
            "the jar is compiled against pyspark 4.3 (and runs on 4.0 to 4.2): `pip install pyspark==4.3.0`."
        )
    return jars


def pack(classes: Path, target: Path) -> bytes:
    entries = {"META-INF/MANIFEST.MF": MANIFEST}
    entries |= {file.relative_to(classes).as_posix(): file.read_bytes() for file in sorted(classes.rglob("*.class"))}
    with zipfile.ZipFile(target, "w") as jar:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system = 3  # the same on every build host
            info.external_attr = 0o644 << 16
            jar.writestr(info, content)  # stored: bytes then do not depend on the zlib at hand
    return target.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
