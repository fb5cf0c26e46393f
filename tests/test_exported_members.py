"""The public names are few, sorted and real."""

from __future__ import annotations

import ast
from pathlib import Path

import fencepost

MOST = 35


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
