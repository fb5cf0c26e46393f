"""`fencepost version`: what is installed, without starting any of it."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from fencepost import __version__
from fencepost.spark.gateway import java_version


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Show the installed versions.

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


def _installed(package: str) -> str | None:
    try:
        return installed(package)
    except PackageNotFoundError:
        return None
