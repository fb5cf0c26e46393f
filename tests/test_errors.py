"""Error texts: what, where, is the data safe, what next."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

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


def by_pickle(error: errors.FencepostError) -> errors.FencepostError:
    found: errors.FencepostError = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    return found


@pytest.mark.parametrize("twin_of", [by_pickle, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_an_error_survives_pickle_and_copy(cls: type[errors.FencepostError], twin_of: Any) -> None:
    error = cls("code", "It broke.", where=errors.Where(job="j", path="p"), next="Look.", safe="Safe.").at(epoch=3)
    error.add_note("seen on a Monday")
    twin = twin_of(error)
    assert (cls, str(error), error.args) == (type(twin), str(twin), twin.args)
    assert vars(error) == vars(twin)
    assert ("code", "It broke.", error.where, "Safe.", "Look.") == (
        twin.code,
        twin.what,
        twin.where,
        twin.safe,
        twin.next,
    )
    twin.at(sink="s")
    assert None is error.where.sink


def test_a_safe_that_was_not_given_stays_that_of_the_class() -> None:
    assert errors.Fenced.safe == by_pickle(errors.Fenced("code", "It broke.", next="Look.")).safe
