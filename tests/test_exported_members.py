"""The public names are few, sorted and real."""

from __future__ import annotations

import fencepost

MOST = 35


def public() -> list[str]:
    return list(getattr(fencepost, "__all__", []))


def test_public_names_are_sorted_and_unique() -> None:
    assert sorted(set(public())) == public()


def test_every_public_name_exists() -> None:
    assert [] == [name for name in public() if not hasattr(fencepost, name)]


def test_public_names_are_few() -> None:
    assert len(public()) <= MOST
