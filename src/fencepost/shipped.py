"""Files that the package brings along, wherever it was imported from: a folder, or a zip (`spark-submit --py-files`).

Never assumes that a file of ours has a path: whoever needs one gets a copy that goes with the process.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def folder(package: str, name: str) -> Traversable:
    """A folder of data beside a package's modules; to be read only."""
    return files(package) / name


@cache
def path(package: str, name: str) -> Path:
    """The path of one file; out of a zip, of a copy for the life of this process."""
    found = files(package) / name
    if isinstance(found, Path):
        return found
    made = _temporary() / name
    made.write_bytes(found.read_bytes())
    return made


@cache
def archive() -> Path:
    """The package's own modules as one zip, for Python processes elsewhere that have none of it, or another version."""
    made = _temporary() / "fencepost.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, module in _modules(files("fencepost"), "fencepost"):
            zipped.writestr(name, module.read_bytes())
    return made


def _modules(place: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for each in place.iterdir():
        if each.is_dir():
            yield from _modules(each, f"{name}/{each.name}")
        elif each.name.endswith((".py", ".jar")):
            yield f"{name}/{each.name}", each


def _temporary() -> Path:
    made = Path(tempfile.mkdtemp(prefix="fencepost-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
