"""Error texts: what, where, is the data safe, what next."""

from __future__ import annotations

import re

import pytest

from fencepost import errors


def classes() -> list[type[errors.FencepostError]]:
    """Every class of the tree."""
    found = [getattr(errors, name) for name in errors.__all__]
    return [cls for cls in found if isinstance(cls, type) and issubclass(cls, errors.FencepostError)]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    assert sorted(cls.__name__ for cls in classes()) == sorted(name for name in drawn if hasattr(errors, name))


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_an_error_says_what_where_whether_the_data_is_safe_and_what_next(cls: type[errors.FencepostError]) -> None:
    error = cls("code", "It broke.", where=errors.Where(job="j"), next="Mend it.").at(job="other", epoch=3, sink="s")
    lines = str(error).splitlines()
    assert "[code] It broke." == lines[0]
    assert "  where: job 'j', epoch 3, sink 's'" == lines[1]
    assert lines[2].startswith("  data:  ")
    assert "  next:  Mend it." == lines[3]


def test_only_what_may_be_tried_again_is_retryable() -> None:
    retryable = {cls.__name__ for cls in classes() if issubclass(cls, errors.Retryable)}
    assert {"Retryable", "EpochFailed", "InDoubt", "RecoveryNeeded"} == retryable
