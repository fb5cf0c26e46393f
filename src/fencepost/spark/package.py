"""Files that ship with the package, whether it was imported from a folder or a zip (`spark-submit --py-files`).

Never assumes that a file of ours has a path: whoever needs one gets a copy that is deleted with the process.
"""

from __future__ import annotations

import ast
import atexit
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

ARCHIVE = "fencepost.zip"
"""What workers get."""


def folder(package: str, name: str) -> Traversable:
    """A folder of data beside a package's modules; read-only."""
    return files(package) / name


@cache
def path(package: str, name: str) -> Path:
    """The path of one file; if it is in a zip, of a copy that lives as long as this process."""
    found = files(package) / name
    if isinstance(found, Path):
        return found
    made = _temporary() / name
    made.write_bytes(found.read_bytes())
    return made


@cache
def archive() -> Path:
    """The part of this package that tasks import, as a zip: for workers that lack it or have another version.

    It contains `worker.py`, `table_source.py`, every sink (a sink that writes in tasks is pickled with its class, and a
    user's own may derive from any), and everything these import, even inside functions.
    """
    made = _temporary() / ARCHIVE
    modules = dict(_modules(files("fencepost"), "fencepost"))
    needed = _with_imports({"fencepost.spark.worker", "fencepost.spark.table_source", *_sinks(modules)}, modules)
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in sorted(needed):
            inner = name.replace(".", "/")
            zipped.writestr(f"{inner}/__init__.py" if modules[name].is_package else f"{inner}.py", modules[name].text)
    return made


@dataclass(frozen=True)
class _Module:
    text: bytes
    is_package: bool

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(_run(ast.parse(self.text)))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree except what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from _run(child)


def _modules(place: Traversable, name: str) -> Iterator[tuple[str, _Module]]:
    for each in place.iterdir():
        if each.name == "__init__.py":
            yield name, _Module(each.read_bytes(), is_package=True)
        elif each.name.endswith(".py"):
            yield f"{name}.{each.name.removesuffix('.py')}", _Module(each.read_bytes(), is_package=False)
        elif each.is_dir():
            yield from _modules(each, f"{name}.{each.name}")


def _sinks(modules: Mapping[str, _Module]) -> set[str]:
    """The modules with a class that derives from `Sink`: a user's own sink may derive from any of them."""
    classes = {
        (name, node)
        for name, module in modules.items()
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and node.bases
    }
    names = {"Sink"}
    found: set[str] = set()
    while more := {
        (name, node)
        for name, node in classes
        if any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
    }:
        classes -= more
        names |= {node.name for _, node in more}
        found |= {name for name, _ in more}
    return found


def _with_imports(names: set[str], modules: Mapping[str, _Module]) -> set[str]:
    """These modules, their packages, and everything of ours that they import."""
    found: set[str] = set()
    unread = set(names)
    while unread:
        name = unread.pop()
        found.add(name)
        wanted = {name.rpartition(".")[0], *_imports(modules[name])}
        unread |= {each for each in wanted if each in modules and each not in found}
    return found


def _imports(module: _Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _temporary() -> Path:
    made = Path(tempfile.mkdtemp(prefix="fencepost-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
