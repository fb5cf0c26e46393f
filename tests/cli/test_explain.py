"""Every code that an error can bear is explained, and no other; the collector sees every way a code gets into one."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost import errors
from fencepost.cli import catalogue
from fencepost.cli.main import cli
from fencepost.errors import BadConfig, FencepostError

SOURCE = Path(catalogue.__file__).parents[1]
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FencepostError)}
KINDS |= {"Finding", "Ending"}
"""Of the doctor and the supervisor: their codes are shown like those of errors."""
CODE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")


def codes_in(text: str) -> set[str]:
    """The codes that a module gives to errors: as they stand, by a helper's argument, or by a variable."""
    tree = ast.parse(text)
    return {code for code in _codes(tree) if CODE.fullmatch(code)}


def _codes(tree: ast.Module) -> Iterator[str]:
    helpers = _helpers(tree)
    for scope in ast.walk(tree):
        for node in ast.iter_child_nodes(scope):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if _name(node.func) in KINDS | helpers:
                yield from _literals(node.args[0])
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            yield from _assigned(function)


def _helpers(tree: ast.Module) -> set[str]:
    """Functions that hand their argument `code` on to an error, and variables that hold a kind of error."""
    found = {"refused", "_refused"}  # of the contract between a sink's session and its target
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = function.args.args
        if any(argument.arg == "code" for argument in arguments):
            found.add(function.name)
        found |= {
            a.arg for a in arguments if a.annotation and ast.unparse(a.annotation).removeprefix("type[")[:-1] in KINDS
        }
    return found


def _assigned(function: ast.FunctionDef) -> Iterator[str]:
    """`code = "…"`, also within a tuple, in a function that gives `code` to an error."""
    gives = any(
        isinstance(node, ast.Call)
        and _name(node.func) in KINDS
        and node.args
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == "code"
        for node in ast.walk(function)
    )
    for node in ast.walk(function) if gives else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names, values = [target], [node.value]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    names, values = target.elts, node.value.elts
                for name, value in zip(names, values, strict=True):
                    if isinstance(name, ast.Name) and name.id == "code":
                        yield from _literals(value)


def _literals(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from _literals(value.body)
        yield from _literals(value.orelse)


def _name(function: ast.expr) -> str:
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def in_source() -> set[str]:
    """Of the product; what attacks it has codes of its own."""
    files = [path for path in SOURCE.rglob("*.py") if "prove" not in path.relative_to(SOURCE).parts]
    return set().union(*(codes_in(path.read_text()) for path in files))


def test_every_code_is_explained_and_no_other() -> None:
    found, explained = in_source(), set(catalogue.load())
    assert (set(), set()) == (found - explained, explained - found)
    assert len(found) > 200


@pytest.mark.parametrize(
    "text",
    [
        "raise BadConfig('a_code', 'x', next='y')",
        "raise errors.Refused('a_code', 'x', next='y')",
        "yield_ = Finding('a_code', '.', 'x', 'person', 'y')",
        "raise BadConfig('a_code' if x else 'b_code', 'x', next='y')",
        "def f(code): return Fenced(code, 'x', next='y')\nraise f('a_code')",
        "def f():\n    what, code = 'x', 'a_code'\n    return Fenced(code, what, next='y')",
        "def f(kind: type[Retryable]): return kind('a_code', 'x', next='y')",
        "raise self.refused('a_code', 'x', 'y')",
    ],
)
def test_the_collector_sees_every_way_a_code_gets_into_an_error(text: str) -> None:
    assert "a_code" in codes_in(text)


def test_every_explanation_says_what_it_means_and_what_to_do() -> None:
    for entry in catalogue.load().values():
        assert CODE.fullmatch(entry.code)
        for text in (entry.means, entry.do):
            assert text.endswith((".", ":")), entry
            assert len(re.split(r"[.?] ", text)) <= 3, entry
        assert len(entry.means) > 20, entry


def test_one_code_is_explained() -> None:
    done = CliRunner().invoke(cli, ["explain", "[target_silent]"])
    assert 0 == done.exit_code
    assert ["target_silent", "means:", "do:"] == [
        line.split()[0] for line in done.stdout.splitlines() if line[2:3] != " "
    ]


def test_without_a_code_all_are_listed_by_theme() -> None:
    listed = CliRunner().invoke(cli, ["explain"]).stdout
    plain = json.loads(CliRunner().invoke(cli, ["explain", "--json"]).stdout)
    assert set(catalogue.load()) == {entry["code"] for entry in plain}
    assert [entry["code"] for entry in plain] == [line.split()[0] for line in listed.splitlines() if line[:2] == "  "]


@pytest.mark.parametrize(
    ("typed", "meant"), [("targt_silent", "target_silent"), ("TARGET", "target_"), ("savepoint", "savepoint_")]
)
def test_an_unknown_code_gets_the_nearest(typed: str, meant: str) -> None:
    done = CliRunner().invoke(cli, ["explain", typed])
    assert isinstance(done.exception, BadConfig)
    assert "unknown_code" == done.exception.code
    assert meant in done.exception.next
