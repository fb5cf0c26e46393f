"""The weakest link."""

from __future__ import annotations

import pytest

from fencepost.contract import Capabilities
from fencepost.errors import BadConfig, GuaranteeTooHigh
from fencepost.guarantee import Guarantee, Report, check, sink_link, source_link, weakest

STRONG = sink_link("db", Capabilities(shape="apply", repeatable=True))
WEAK = sink_link("api", Capabilities(shape="apply", repeatable=False, remedy="store the epoch"))
FILES = source_link("files", replayable=True)
SOCKET = source_link("socket", replayable=False)


@pytest.mark.parametrize(
    ("source", "sink", "best"),
    [
        (FILES, STRONG, Guarantee.EXACTLY_ONCE),
        (FILES, WEAK, Guarantee.AT_LEAST_ONCE),
        (SOCKET, STRONG, Guarantee.AT_MOST_ONCE),
        (SOCKET, WEAK, Guarantee.AT_MOST_ONCE),
    ],
)
def test_a_job_is_as_strong_as_its_weakest_link(source, sink, best) -> None:
    assert best == weakest([source, sink]).best
    for asked in Guarantee:
        if asked <= best:
            check(asked, [source, sink], job="j")
        else:
            with pytest.raises(GuaranteeTooHigh) as refused:
                check(asked, [source, sink], job="j")
            text = str(refused.value)
            assert weakest([source, sink]).part in text
            assert weakest([source, sink]).reason in text
            assert weakest([source, sink]).cure.lower() in text.lower()


def test_an_unknown_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadConfig) as refused:
        Guarantee.parse("once")
    assert "unknown_guarantee" == refused.value.code
    assert all(level.word in str(refused.value) for level in Guarantee)


def test_a_report_ends_with_the_job_itself() -> None:
    report = Report("j", Guarantee.EXACTLY_ONCE, (FILES, WEAK))
    assert not report.holds
    assert ("end to end", "at_least_once") == report.rows[-1][:2]
    assert Report("j", Guarantee.AT_LEAST_ONCE, (FILES, WEAK)).holds
