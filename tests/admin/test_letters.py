"""What may be shown of a dead letter's error: the words of fencepost's own, and of a user's error only its class."""

from __future__ import annotations

import pytest

from fencepost.admin.letters import OTHER, ends_of, shown_error
from fencepost.errors import BadConfig

CANARY = "canary-7791"

SAME = [
    "the record is null",
    "the record is not a JSON object of id BIGINT, amount DOUBLE",
    "the record has no id, which is NOT NULL",
    "sink orders refused it: NULL in a column that is NOT NULL, column 'amount'",
    "column value is not UTF-8",
    "to_order returned null for id, which is NOT NULL",
    "<lambda> returned null for id, which is NOT NULL",
    "field id is bigint, but got a str",
    "field amount is decimal(4,2), but got a Decimal (it has too many digits)",
]


@pytest.mark.parametrize("error", SAME)
def test_words_of_our_own_are_shown_whole(error: str) -> None:
    assert error == shown_error(error)
    assert (error, "") == ends_of(error)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (f"ValueError: invalid literal: '{CANARY}' (to_order, line 3)", "ValueError in to_order, line 3"),
        (f"KeyError: '{CANARY}\n(x, line 9)' (<lambda>, line 1)", "KeyError in <lambda>, line 1"),
        ("TimeoutError (look_up, line 3)", "TimeoutError in look_up, line 3"),
        (f"ValueError: {CANARY} (Parser)", "ValueError in Parser"),
        (
            f"ValueError: returned a str for {CANARY}, which cannot hold it: x (to_order, line 3)",
            "ValueError in to_order, line 3",
        ),
        (f"ValueError: returned null for {CANARY}, which is NOT NULL", OTHER),
        (f"ValueError: returned a str for {CANARY}, which cannot hold it", OTHER),
        (
            f"to_order returned a str for id, which cannot hold it: '{CANARY}, which cannot hold it",
            "to_order returned a str for id, which cannot hold it",
        ),
        (
            f"to_order returned a str for id, which cannot hold it: Could not convert '{CANARY}'",
            "to_order returned a str for id, which cannot hold it",
        ),
        (f"ValueError: {CANARY}".ljust(3980, "x") + " (canary7791, line 3)"[:20].rjust(20), "ValueError"),
        (CANARY, OTHER),
        (f"the record is {CANARY}", OTHER),
        (f"the record is null {CANARY}", OTHER),
        ("", OTHER),
        (None, OTHER),
    ],
)
def test_nothing_that_a_record_could_have_put_there_is_shown(error: str | None, shown: str) -> None:
    assert shown == shown_error(error)
    assert "7791" not in shown


@pytest.mark.parametrize(
    ("shown", "ends"),
    [
        ("ValueError in to_order, line 3", ("ValueError", " (to_order, line 3)")),
        ("ValueError in Parser", ("ValueError", " (Parser)")),
        ("ValueError", ("ValueError:", "")),
    ],
)
def test_a_target_is_asked_for_errors_by_how_they_begin_and_end(shown: str, ends: tuple[str, str]) -> None:
    assert ends == ends_of(shown)


@pytest.mark.parametrize("guess", ["ValueError: invalid literal for int() with base 10: 'c", "", OTHER, "%", "canary-"])
def test_nobody_can_ask_for_a_value_by_guessing_it(guess: str) -> None:
    with pytest.raises(BadConfig, match="error is not valid"):
        ends_of(guess)
