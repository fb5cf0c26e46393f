"""The tutorial's code is run as printed: its sink passes the suite, and its job is exactly once."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sqlite3
import subprocess
import sys
import typing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fencepost import contract
from fencepost.connectors.custom import TwoPhaseCommit, WriteAheadLog

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "write-a-sink.md"
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(contract.__file__).parents[1])}
PUBLIC = {"fencepost", "fencepost.contract", "fencepost.testing", "fencepost.errors"}


def outcome_of(folder: Path, sink: str) -> tuple[int, str]:
    """Write the page's files with this sink, and run their tests."""
    for name, text in {**FILES, "shop_sink.py": sink}.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "test_shop_sink.py"]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_sink_passes_the_suite(tmp_path: Path) -> None:
    code, said = outcome_of(tmp_path, FILES["shop_sink.py"])
    assert 0 == code, said
    assert int(re.findall(r"(\d+) passed", said)[0]) >= 19, said


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ('            db.execute("INSERT INTO done VALUES (?)", [body["id"]])\n', ""),
        (
            '            db.execute("INSERT INTO done VALUES (?)", [body["id"]])\n            db.execute("COMMIT")\n',
            '            db.execute("COMMIT")\n            return Outcome.DONE\n',
        ),
        ('return db.execute("SELECT id FROM identity").fetchone()[0]', 'return "shop"'),
        ('return {"id": unit}', 'return {"id": unit, "rows": batches}'),
    ],
)
def test_the_suite_catches_a_line_that_is_wrong(tmp_path: Path, line: str, instead: str) -> None:
    sink = FILES["shop_sink.py"]
    assert line in sink
    code, said = outcome_of(tmp_path, sink.replace(line, instead))
    assert 1 == code, said


def test_it_is_about_fifty_lines() -> None:
    (sink,) = [node for node in ast.parse(FILES["shop_sink.py"]).body if isinstance(node, ast.ClassDef)]
    lines = ast.unparse(sink).splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 60


@pytest.mark.parametrize("name", FILES)
def test_it_imports_what_is_public_only(name: str) -> None:
    assert [] == [module for module in imported(FILES[name]) if module.startswith("fencepost") and module not in PUBLIC]


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.spark
def test_the_job_runs_and_writes_each_row_once(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "1.json").write_text('{"k": "a", "v": 1}\n{"k": "b", "v": 2}\n')
    for _ in range(2):
        subprocess.run([sys.executable, "shop_job.py"], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=300)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        assert [("a", 1), ("b", 2)] == sorted(db.execute("SELECT k, v FROM sales"))


# --- what a sink's author has to name is in one place


def test_the_contracts_names_are_sorted_and_there() -> None:
    names = contract.__all__
    assert len(set(names)) == len(names)
    assert [] == [name for name in names if not hasattr(contract, name)]


def named_in(kind: type) -> Iterator[tuple[str, type]]:
    """The classes of ours in the signatures of a class, by who names them."""
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        for hint in typing.get_type_hints(function).values():
            yield from ((f"{kind.__name__}.{name}", found) for found in classes(hint))


def classes(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint) and hint.__module__.startswith("fencepost"):
        yield hint
    for inner in typing.get_args(hint):
        yield from classes(inner)


ROOTS = [contract.Sink, contract.Session, contract.Source, contract.Owner, TwoPhaseCommit, WriteAheadLog]


@pytest.mark.parametrize("kind", ROOTS, ids=lambda kind: kind.__name__)
def test_every_type_that_a_signature_names_can_be_imported_from_the_contract(kind: type) -> None:
    public = {getattr(contract, name) for name in contract.__all__}
    missing = [f"{where}: {found.__name__}" for where, found in named_in(kind) if found not in public]
    assert [] == missing


def test_a_type_that_is_missing_is_seen() -> None:
    class Odd:
        def method(self, other: TwoPhaseCommit[int]) -> list[Path]: ...

    class Hidden:
        __module__ = "fencepost.somewhere"

    Odd.method.__annotations__ = {"other": Hidden, "return": list[Hidden]}
    assert [Hidden, Hidden] == [found for _, found in named_in(Odd)]
