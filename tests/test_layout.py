"""The shape of the package: imports go one way, modules are plain nouns, and a name means one thing.

Each check takes the package as a dict of path to text, so that it is run twice: on the tree, where it must be silent,
and on a package with something planted, where it must not.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"
ORDER = [
    "errors",
    "credential",
    "faults",
    "protocol",
    "store",
    "contract",
    "guarantee",
    "config",
    "settings",
    "observe",
    "spark",
    "connectors",
    "runtime",
    "supervise",
    "job",
    "__init__",
    "admin",
    "testing",
    "ui",
    "cli",
    "__main__",
]
"""Each entry imports only what stands before it; `__init__` is what `import fencepost` gives a user."""
ADJECTIVES = frozenset(
    [
        "late",
        "unusable",
        "shipped",
        "beginning",
        "named",
        "commanded",
        "shared",
        "seen",
        "claimed",
        "hidden",
        "stale",
        "inside",
        "verified",
        "holding",
        "staged",
        "settled",
        "ending",
        "looking",
        "anew",
        "quiet",
    ]
)
SHADOWS = frozenset({"inspect", "requests", "queue", "logging", "json", "types", "time", "signal"})

Package = Mapping[str, str]
"""Path below src (`fencepost/job.py`) to text."""


def back_edges(package: Package) -> dict[tuple[str, str], list[str]]:
    """Imports against the order: from entry, to entry, and where they stand."""
    rank = {entry: place for place, entry in enumerate(ORDER)}
    found = defaultdict(list)
    for importer, imported, where in edges(package):
        if importer != imported and rank[imported] > rank[importer]:
            found[importer, imported].append(where)
    return dict(found)


def cycles(package: Package) -> list[set[str]]:
    """Top entries that import each other, directly or by way of others."""
    reached: dict[str, set[str]] = defaultdict(set)
    for importer, imported, _ in edges(package):
        if importer != imported:
            reached[importer].add(imported)
    for via in list(reached):
        for entry in list(reached):
            if via in reached[entry]:
                reached[entry] |= reached[via]
    rings = [{other for other in reached[entry] if entry in reached[other]} for entry in sorted(reached)]
    return [ring for n, ring in enumerate(rings) if ring and ring not in rings[:n]]


def edges(package: Package) -> Iterator[tuple[str, str, str]]:
    """Every import of an entry by an entry, with its place: at the top, in a function, for types, or by its name."""
    modules = {name_of(path) for path in package}
    for path, text in package.items():
        for line, imported, is_text in imported_names(path, text):
            parts = imported.split(".")
            while ".".join(parts) not in modules:  # `from fencepost.job import Job`: the module is what is imported
                parts.pop()
            if is_text and len(parts) == 1:  # the name of a log or of a property
                continue
            yield entry_of(name_of(path)), entry_of(".".join(parts)), f"{path}:{line}"


def imported_names(path: str, text: str) -> Iterator[tuple[int, str, bool]]:
    """What a module imports of the package, and what it names in a text: `sys.modules["fencepost.job"]`, `-m …`."""
    package = name_of(path).split(".") if path.endswith("__init__.py") else name_of(path).split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        is_text = isinstance(node, ast.Constant)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [".".join([*base, alias.name]) for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not set(node.value) & set(" \n/`"):
            names = [node.value] if node.value.startswith("fencepost.") else []
        yield from ((node.lineno, name, is_text) for name in names if name.split(".")[0] == "fencepost")


def name_of(path: str) -> str:
    """`fencepost/cli/__init__.py` is `fencepost.cli`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def entry_of(module: str) -> str:
    """What `ls src/fencepost` shows of it."""
    return module.split(".")[1] if "." in module else "__init__"


def bad_names(package: Package) -> list[str]:
    """Modules that are not named by a plain noun, or like a module that everybody knows."""
    return [path for path in package if name_of(path).rsplit(".", 1)[-1] in ADJECTIVES | SHADOWS]


def modules_of_one_name(package: Package) -> dict[str, list[str]]:
    """Names that two modules have, unless it is the same role in the folders of two connectors, or a verb's and the
    room's that does it.
    """
    found = defaultdict(list)
    for module in map(name_of, package):
        name = module.rsplit(".", 1)[-1]
        if name != "__main__":
            found[name].append(module)
    return {name: modules for name, modules in found.items() if not _have_one_role(modules)}


def classes_of_one_name(package: Package) -> dict[str, list[str]]:
    """Names that two classes have, unless it is the same role in the folders of two connectors."""
    found = defaultdict(list)
    for path, text in package.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name_of(path))
    return {
        name: modules
        for name, modules in found.items()
        if not _have_one_role(modules) or len(set(modules)) < len(modules)
    }


def dead_paths(text: str) -> list[str]:
    """Files and folders that a document names, in backticks or in a picture's second column, and that are not there.

    A path begins at the tree's root, the package, the proof, the documents, the tests or the examples; a bare name may
    be anywhere.
    """
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md|toml|sql|jar)|/))`", text)
    named += re.findall(r"^[\w' ]+?  +([a-z_]+/[\w./]+\.py)  +", text, re.MULTILINE)
    roots = ("", "src/fencepost", "proof/src/fencepost_proof", "docs", "tests", "examples")
    anywhere = {
        file.name for root in ("src", "proof/src", "tests", "docs") for file in (SOURCE.parent / root).rglob("*.*")
    }
    anywhere.add("fencepost.toml")  # a user's own
    return [p for p in named if p not in anywhere and not any((SOURCE.parent / root / p).exists() for root in roots)]


def drawn_entries(text: str) -> list[str]:
    """The entries of the package as a document draws them: as a tree, or in the first column of a table."""
    tree = re.search(r"^src/fencepost/\n((?:  .*\n)+)", text, re.MULTILINE)
    rows = re.findall(r"^  (\w+)[./]", tree[1], re.MULTILINE) if tree else []
    return rows or re.findall(r"^\| `(\w+)(?:\.py|/)` \|", text, re.MULTILINE)


def _have_one_role(modules: list[str]) -> bool:
    others = [module for module in modules if not module.startswith("fencepost.cli.")]
    systems = [module.split(".")[2] for module in others if module.startswith("fencepost.connectors.")]
    return len(others) <= 1 or (len(systems) == len(others) == len(set(systems)))


@pytest.fixture(scope="module")
def package() -> Package:
    files = sorted((SOURCE / "fencepost").rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in files}


def test_every_entry_has_its_place_in_the_order(package: Package) -> None:
    assert set(ORDER) == {entry_of(name_of(path)) for path in package}


def test_nothing_imports_against_the_order(package: Package) -> None:
    found = back_edges(package)
    assert {} == found


def test_no_entries_import_each_other(package: Package) -> None:
    assert [] == cycles(package)


def test_modules_are_plain_nouns(package: Package) -> None:
    assert [] == bad_names(package)


@pytest.mark.parametrize("check", [modules_of_one_name, classes_of_one_name])
def test_a_name_means_one_thing(package: Package, check: Callable[[Package], dict[str, list[str]]]) -> None:
    assert {} == check(package)


DOCUMENTS = sorted(
    path.relative_to(SOURCE.parent).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in SOURCE.parent.glob(pattern)
    if path.name != "CHANGELOG.md"
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_in_a_document_is_there(name: str) -> None:
    assert [] == dead_paths((SOURCE.parent / name).read_text())


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/ARCHITECTURE.md"])
def test_the_order_that_is_written_down_is_the_one_that_is_tested(name: str) -> None:
    assert [entry for entry in ORDER if "__" not in entry] == drawn_entries((SOURCE.parent / name).read_text())


def test_a_path_that_is_not_there_is_seen() -> None:
    assert [] == dead_paths("`protocol/epoch.py` and `tests/golden/`\nthe rules     protocol/epoch.py         barrier")
    assert ["sinks/sql.py", "attack/"] == dead_paths("`sinks/sql.py` and `attack/`")
    assert ["rules/epoch.py"] == dead_paths("the rules     rules/epoch.py         barrier")


def test_a_tree_in_another_order_is_read_as_it_stands() -> None:
    assert ["cli", "errors"] == drawn_entries("src/fencepost/\n  cli/    verbs\n  errors.py   a tree\nproof/\n")
    assert ["cli", "errors"] == drawn_entries("| `cli/` | verbs |\n| `errors.py` | a tree |\n")


HOUSE = {
    "fencepost/__init__.py": "",
    "fencepost/store/__init__.py": "",
    "fencepost/store/path.py": "",
    "fencepost/runtime/driver.py": "class Driver:\n    pass",
    "fencepost/job.py": "from fencepost.runtime.driver import Driver\nfrom fencepost.store import path",
}


def planted(path: str, text: str) -> Package:
    """A small package with one module more, or another text of one."""
    return {**HOUSE, path: text}


def test_a_small_package_in_order_is_accepted() -> None:
    assert ({}, [], [], {}, {}) == (
        back_edges(HOUSE),
        cycles(HOUSE),
        bad_names(HOUSE),
        modules_of_one_name(HOUSE),
        classes_of_one_name(HOUSE),
    )


@pytest.mark.parametrize(
    "text",
    [
        "from fencepost.job import Job",
        "import fencepost.job",
        "from .. import job",
        "from ..job import Job",
        "def f():\n    from fencepost import job",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fencepost.job import Job",
        "import sys\njob = sys.modules['fencepost.job']",
        "import sys\njob = sys.modules.get('fencepost.job')",
        "from importlib import import_module\njob = import_module('fencepost.job')",
        "job = __import__('fencepost.job')",
        "command = ['python', '-m', 'fencepost.job']",
        "homes = {'Job': 'fencepost.job.Job'}",
    ],
)
def test_a_planted_import_against_the_order_is_seen(text: str) -> None:
    found = planted("fencepost/store/path.py", text)
    assert {("store", "job")} == back_edges(found).keys()
    assert [{"store", "job"}] == cycles(found)


def test_a_room_that_takes_what_users_import_is_seen() -> None:
    assert {("store", "__init__")} == back_edges(planted("fencepost/store/path.py", "import fencepost as fp")).keys()


def test_a_cycle_by_way_of_a_third_is_seen() -> None:
    found = planted("fencepost/runtime/driver.py", "from fencepost import store")
    found = {**found, "fencepost/store/path.py": "from fencepost import job"}
    assert [{"store", "runtime", "job"}] == cycles(found)


@pytest.mark.parametrize("name", ["late", "quiet", "inspect"])
def test_a_module_named_by_an_adjective_or_like_a_known_one_is_seen(name: str) -> None:
    path = f"fencepost/store/{name}.py"
    assert [path] == bad_names(planted(path, ""))


@pytest.mark.parametrize(
    ("path", "is_seen"),
    [
        ("fencepost/spark/driver.py", True),
        ("fencepost/connectors/kafka/driver.py", True),
        ("fencepost/runtime/job.py", True),
        ("fencepost/cli/driver.py", False),
    ],
)
def test_two_modules_of_one_name_are_seen(path: str, is_seen: bool) -> None:
    assert is_seen == bool(modules_of_one_name(planted(path, "")))


def test_two_classes_of_one_name_are_seen_unless_they_have_one_role() -> None:
    text = "class Server:\n    pass"
    mysql = planted("fencepost/connectors/mysql/server.py", text)
    assert {} == classes_of_one_name({**mysql, "fencepost/connectors/postgres/server.py": text})
    assert {"Server"} == classes_of_one_name({**mysql, "fencepost/connectors/mysql/names.py": text}).keys()
    assert {"Server"} == classes_of_one_name({**mysql, "fencepost/spark/spark_session.py": text}).keys()
