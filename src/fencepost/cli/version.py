"""`fencepost version`: what is at work, without starting any of it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

import click

from fencepost import __version__


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def version(as_json: bool) -> None:
    """Say which versions are at work.

    A package that is not installed, and a Java that is not found, are shown as missing.
    """
    found = versions()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for name, number in found.items():
        click.echo(f"{name:<10}{number or 'missing'}")


def versions() -> dict[str, str | None]:
    """By name; None for what is not there."""
    return {
        "fencepost": __version__,
        "python": platform.python_version(),
        "pyspark": _installed("pyspark"),
        "pyarrow": _installed("pyarrow"),
        "java": java_version(),
    }


def java() -> Path | None:
    """The Java that Spark would take: JAVA_HOME's, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return Path(found).resolve() if found else None


def java_version() -> str | None:
    """From the file that every Java runtime has beside its programs: to ask it takes as long as all the rest."""
    program = java()
    if program is None:
        return None
    try:
        text = (program.parent.parent / "release").read_text(encoding="utf-8")
    except OSError:
        return "of unknown version"
    found = re.search(r'^JAVA_VERSION="(.+)"$', text, re.MULTILINE)
    return found[1] if found else "of unknown version"


def _installed(package: str) -> str | None:
    try:
        return installed(package)
    except PackageNotFoundError:
        return None
