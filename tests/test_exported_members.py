"""The public names are few, sorted and real."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import fencepost
import fencepost as fp

MOST = 38
OF_A_JOB = [
    "cancel",
    "check",
    "checkpoint",
    "lineage",
    "map",
    "metrics",
    "name",
    "on_complete",
    "on_failure",
    "on_restart",
    "parse",
    "read",
    "run",
    "share",
    "show",
    "spark",
    "start",
    "stop",
    "trace",
    "write",
]


def public() -> list[str]:
    return list(getattr(fencepost, "__all__", []))


def test_public_names_are_sorted_and_unique() -> None:
    assert sorted(set(public())) == public()


def test_every_public_name_exists() -> None:
    assert [] == [name for name in public() if not hasattr(fencepost, name)]


def test_every_public_name_has_a_home_and_type_checkers_know_the_same_one() -> None:
    """They are imported at their first use; what is written for type checkers must not differ from it."""
    tree = ast.parse(Path(fencepost.__file__).read_text())
    (seen,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {
        alias.name: (node.module or "").removeprefix("fencepost.")
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert fencepost._HOMES == shown
    assert set(public()) == set(shown)


def test_they_are_listed_before_they_are_used() -> None:
    assert set(public()) <= set(dir(fencepost))


def test_a_name_that_is_none_of_ours_is_an_attribute_error() -> None:
    assert not hasattr(fencepost, "Pulsar")


def test_public_names_are_few() -> None:
    assert len(public()) <= MOST


def test_a_job_shows_what_users_call_and_nothing_else() -> None:
    job = fp.Job("shown", checkpoint="ck")
    assert OF_A_JOB == [name for name in dir(job) if not name.startswith("_")]


@pytest.mark.parametrize("name", OF_A_JOB)
def test_each_of_them_has_a_docstring_and_types(name: str) -> None:
    member: Any = vars(fp.Job)[name]
    function = member.fget if isinstance(member, property) else member
    assert function.__doc__
    signature = inspect.signature(function)
    assert inspect.Signature.empty is not signature.return_annotation
    assert [] == [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.name != "self" and parameter.annotation is inspect.Parameter.empty
    ]


@pytest.mark.parametrize("name", public())
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert getattr(fencepost, name).__doc__


def test_an_epoch_is_explained_where_people_look_first() -> None:
    """By the word that Spark has for it."""
    assert ["Checkpoint", "Job"] == [
        name for name in public() if "An epoch is one micro-batch of Spark" in (getattr(fencepost, name).__doc__ or "")
    ]


def undocumented(home: object, names: list[str]) -> list[str]:
    """Of the classes and functions among these names, and of what is public in those classes."""
    found = []
    for name in names:
        thing = getattr(home, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            members = {
                f"{name}.{key}": getattr(thing, key)
                for key, value in vars(thing).items()
                if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))
            }
            found += [where for where, each in {name: thing, **members}.items() if not inspect.getdoc(each)]
    return found


def test_the_public_api_has_docstrings() -> None:
    """The linter does not ask for them, because internals need none."""
    assert [] == undocumented(fencepost, public())


def test_a_missing_docstring_is_seen() -> None:
    class Home:
        class Bare:
            def method(self) -> None: ...

    assert ["Bare", "Bare.method"] == undocumented(Home, ["Bare"])
