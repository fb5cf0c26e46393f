"""How long a job rests by itself."""

from __future__ import annotations

import pytest

from fencepost.runtime.pace import LONG_S, MOST_S, records, rest_s


@pytest.mark.parametrize(("many", "ms"), [(0, 50), (1, 50), (10, 50), (100, 5), (10_000, 0.05)])
def test_the_more_records_an_epoch_has_the_shorter_is_the_rest(many: int, ms: float) -> None:
    assert ms == pytest.approx(1000 * rest_s(many))
    assert rest_s(many) <= MOST_S


@pytest.mark.parametrize(("seconds", "ms"), [(0.1, 50), (LONG_S, 50), (1, 25), (60, 0.4166)])
def test_a_long_epoch_has_a_short_rest_whatever_it_wrote(seconds: float, ms: float) -> None:
    assert ms == pytest.approx(1000 * rest_s(1, seconds), rel=1e-3)
    assert rest_s(1, seconds) <= max(MOST_S, seconds / 10)


@pytest.mark.parametrize(
    ("before", "after", "many"),
    [
        (["{}"], ["{}"], 0),
        (['{"a":{"0":5,"1":7}}'], ['{"a":{"0":9,"1":7}}'], 4),
        (['{"a":{"0":5}}'], ['{"a":{"0":9,"1":700}}'], 4),  # where a new partition began, nobody knows here
        (['{"a":{"0":5}}'] * 4, ['{"a":{"0":9}}'] * 4, 4),  # four branches read one topic
        (['{"a":{"0":5}}', '{"b":{"0":1}}'], ['{"a":{"0":9}}', '{"b":{"0":1001}}'], 1000),
        (['{"logOffset":1}'], ['{"logOffset":2}'], 0),
        (["3"], ["4"], 0),
        (["-"], ['{"a":{"0":9}}'], 0),
        (['{"a":{"0":"x"}}'], ['{"a":{"0":"y"}}'], 0),
        ([], ['{"a":{"0":9}}'], 0),
    ],
)
def test_records_are_counted_where_the_offsets_say_how_many(before: list[str], after: list[str], many: int) -> None:
    old, new = ("\n".join(["v1", "{}", *lines]) for lines in (before, after))
    assert many == records(old if before else "", new)
