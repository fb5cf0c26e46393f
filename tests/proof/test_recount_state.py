"""The checker of stateful jobs takes what is right, and finds every single thing that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.checkers import recount_state
from fencepost_proof.checkers.recount_state import Input, Row

LINES = [{"id": i, "key": "abc"[i * 5 // 4 % 3], "value": i * 7 % 50, "at": 1_700_000_000 + i} for i in range(60)]
GIVEN = Input(LINES)
WHOLE = {"lost": 0, "doubled": 0, "wrong": 0}


def sums() -> list[Row]:
    """Every row with a number that nobody can foresee, and the sum of its key so far."""
    rows, last = [], dict.fromkeys("abc", (0, 0))
    for line in LINES:
        key, drawn = line["key"], line["value"] * 31 % 17
        last[key] = (last[key][0] + 1, last[key][1] + drawn)
        rows.append((line["id"], key, drawn, *last[key]))
    return rows


def right(what: str) -> tuple[list[Row], list[Row]]:
    """What sink and state hold if all is well."""
    if what == "windows":
        return GIVEN.windows()
    if what == "joined":
        return GIVEN.joined()
    if what == "sums":
        rows = sums()
        return rows, [max((row[1], *row[3:]) for row in rows if row[1] == key) for key in "abc"]
    totals = [(key, *figures) for key, figures in GIVEN.totals().items()]
    return totals, totals


def judged(tmp_path: Path, what: str, sink: list[Row], state: list[Row]) -> tuple[dict[str, int], dict[str, int]]:
    """Through files, as a killed job leaves them."""
    names = recount_state.COLUMNS[what].split(", ")
    text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in sink)
    (tmp_path / "rows.json").write_text(text)
    return recount_state.verdicts(GIVEN, f"{what}:files:{tmp_path}", {what: state})


@pytest.mark.parametrize("what", recount_state.COLUMNS)
def test_what_is_right_is_taken(tmp_path: Path, what: str) -> None:
    sink, state = right(what)
    assert len(sink) > 1
    assert len(state) > 1
    assert (WHOLE, WHOLE) == judged(tmp_path, what, sink, state)


@pytest.mark.parametrize("side", [0, 1], ids=["sink", "state"])
@pytest.mark.parametrize("what", recount_state.COLUMNS)
def test_a_row_that_is_lost_doubled_or_different_is_found(tmp_path: Path, what: str, side: int) -> None:
    both = right(what)

    def found(rows: list[Row]) -> dict[str, int]:
        verdicts = judged(tmp_path, what, *(rows if each == side else both[each] for each in (0, 1)))
        return {kind: sum(verdict[kind] for verdict in verdicts) for kind in WHOLE}

    mine = both[side]
    assert found(mine[1:])["lost"] > 0
    again = found([*mine, mine[0]])
    assert again["doubled"] + again["wrong"] > 0
    if not (what == "drawn" and side == 0):
        assert sum(found([*mine[:-1], changed(mine[-1])]).values()) > 0


def changed(row: Row) -> Row:
    last: Any = row[-1]
    return (*row[:-1], f"{last}x" if isinstance(last, str) else (last or 0) + 1)


def test_a_sum_that_differs_between_state_and_sink_is_found_whatever_it_is(tmp_path: Path) -> None:
    sink, state = right("drawn")
    sink = [(key, count, total + 1000) for key, count, total in sink]
    assert ({**WHOLE, "wrong": 3}, WHOLE) == judged(tmp_path, "drawn", sink, state)
    state = [(key, count, total + 1000) for key, count, total in state]
    assert (WHOLE, WHOLE) == judged(tmp_path, "drawn", sink, state)


def test_a_running_sum_that_does_not_go_on_is_found(tmp_path: Path) -> None:
    """Each row may be there once, and still come from two runs of an epoch."""
    sink, state = right("sums")
    at = next(number for number, row in enumerate(sink) if row[3] == 5)
    sink[at] = (*sink[at][:2], sink[at][2] + 1, *sink[at][3:])
    verdict, in_state = judged(tmp_path, "sums", sink, state)
    assert (0, 0, 1) == (verdict["lost"], verdict["doubled"], verdict["wrong"])
    assert 1 == in_state["wrong"]
