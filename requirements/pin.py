"""Write the .txt files beside this one: every package we install, its version and the hashes of its files.

Asks pip, as it is configured where this runs, and must never write where the files came from: only names, versions and
hashes. To move to newer releases: edit the names below, run `python requirements/pin.py` (or `… pin.py docs.txt` for
one of them), read the diff.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DEVELOP = (
    "pyspark==4.3.0",
    "protobuf==6.33.6",
    "pyarrow",
    "click",
    "rich",
    "confluent-kafka==2.16.1",
    "kafka-python==3.0.12",
    "psycopg[binary]",
    "pymysql",
    "cryptography",
    "redis",
    "cassandra-driver",
    "duckdb",
    "deltalake==1.6.6",
    "pyiceberg[sql-sqlite]==0.12.0",
    "pyiceberg-core==0.11.0",
    "boto3",
    "requests",
    "starlette",
    "uvicorn",
    "jinja2",
    "prometheus-client",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-http",
    "openlineage-python",
    "pg8000",
    "hatchling",
    "build",
    "coverage",
    "pytest",
    "pytest-xdist",
    "ruff",
    "mypy",
)
OLDER_SPARKS = {
    "spark40.txt": ("pyspark==4.0.5",),
    "spark41.txt": ("pyspark==4.1.4",),
    "spark42.txt": ("pyspark==4.2.1",),
}
"""Each is laid over the others for the tests of a job: the older Sparks that we support, in their newest patch."""
BUILD = ("setuptools",)
"""pyspark is published as source only: this builds its wheel. Installed first, so that no unpinned code runs."""
DOCS = ("mkdocs-material", "mkdocstrings[python]", "ruff", "pymdown-extensions<13")
"""The documentation site, in a virtual environment of its own: it shares nothing with the product. ruff breaks the
lines of signatures; the last one is capped because 13 does not run on every Python 3.11."""

FILES = {"build.txt": BUILD, "dev.txt": DEVELOP, **OLDER_SPARKS, "docs.txt": DOCS}

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
GLIBC = (28, 39)
"""The 2.x up to which wheels are looked for: an old system (28: pyarrow's floor) may need another file."""

Pins = dict[str, tuple[str, set[str]]]


def main() -> None:
    """Write all files, or those that are named."""
    here = Path(__file__).parent
    for name in sys.argv[1:] or FILES:
        pins = resolve(FILES[name])
        add_other_systems(pins)
        (here / name).write_text(render(pins))
        print(f"{name}: {len(pins)} packages, {sum(len(hashes) for _, hashes in pins.values())} hashes")


def resolve(wanted: tuple[str, ...]) -> Pins:
    """Choose the versions, for the Python that runs this.

    The mistake to watch for: a package needed by another Python only. The installation there refuses it for its missing
    hash, so try all of them after a change.
    """
    pins: Pins = {}
    note(pins, report("--ignore-installed", *wanted))
    return pins


def add_other_systems(pins: Pins) -> None:
    """Add the files that the other Pythons and machines would choose; a release of source only has just the one."""
    for python in PYTHONS:
        for machine in MACHINES:
            for glibc in GLIBC:
                platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(glibc, 4, -1)]
                system = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
                wheels = [f"{name}=={version}" for name, (version, _) in pins.items() if name != "pyspark"]
                with tempfile.TemporaryDirectory() as folder:
                    note(pins, report("--no-deps", f"--target={folder}", *system, *wheels))


def note(pins: Pins, found: list[dict[str, dict[str, str | dict[str, dict[str, str]]]]]) -> None:
    """Add one report's files to the pins."""
    for item in found:
        name = re.sub(r"[-_.]+", "-", str(item["metadata"]["name"])).lower()
        version = str(item["metadata"]["version"])
        archive = item["download_info"]["archive_info"]
        assert isinstance(archive, dict)
        known, hashes = pins.setdefault(name, (version, set()))
        assert known == version, f"{name}: {known} and {version}"
        hashes.add(archive["hashes"]["sha256"])


def report(*arguments: str) -> list[dict[str, dict[str, str | dict[str, dict[str, str]]]]]:
    """What pip would install."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report=-", *arguments]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: list[dict[str, dict[str, str | dict[str, dict[str, str]]]]] = json.loads(answer.stdout)["install"]
    return found


def render(pins: Pins) -> str:
    """The text of a requirements file."""
    blocks = ["# Made by requirements/pin.py from names and hashes alone; not edited by hand.\n"]
    for name, (version, hashes) in sorted(pins.items()):
        lines = [f"{name}=={version}", *(f"    --hash=sha256:{value}" for value in sorted(hashes))]
        blocks.append(" \\\n".join(lines) + "\n")
    return "".join(blocks)


if __name__ == "__main__":
    main()
