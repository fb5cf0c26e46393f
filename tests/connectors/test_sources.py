"""What connectors know of Spark's own sources, asked by Spark's name of them."""

from __future__ import annotations

import pytest

from fencepost import connectors
from fencepost.connectors.kafka.source import FETCH_WAIT
from fencepost.spark.plan import PlanSource

UNTOLD = PlanSource("kafka", {"subscribe": "a"})
TOLD = PlanSource("kafka", {"subscribe": "a", "kafka.isolation.level": "READ_COMMITTED", FETCH_WAIT: "9"})
OTHER = PlanSource("rate", {})


def test_a_source_that_no_connector_knows_is_left_alone() -> None:
    assert {} == connectors.find(None, {"0": OTHER}, "job")
    assert [] == connectors.notes([OTHER])
    assert connectors.explain("java.lang.OutOfMemoryError: Java heap space", "job") is None


@pytest.mark.parametrize(("sources", "count"), [([TOLD], 0), ([UNTOLD], 1), ([UNTOLD, OTHER, UNTOLD, TOLD], 1)])
def test_what_a_plan_gives_up_is_said_once(sources: list[PlanSource], count: int) -> None:
    notes = connectors.notes(sources)
    assert ["read_uncommitted", FETCH_WAIT] * count == [
        word for note in notes for word in ("read_uncommitted", FETCH_WAIT) if word in note
    ]


def test_how_long_a_source_waits_is_shown() -> None:
    assert [(FETCH_WAIT, "9")] == connectors.settings([UNTOLD, OTHER, TOLD, TOLD])


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("kafka", True),
        ("rate", True),
        ("rate-micro-batch", True),
        ("FileSource[/in]", True),
        ("socket", False),
        ("memory", False),
        ("kafka_http", None),
        ("rates_feed", None),
        ("websocket", None),
    ],
)
def test_a_source_is_known_by_its_whole_name(kind: str, known: bool | None) -> None:
    assert known == PlanSource(kind, {}).replayable(())


def test_the_users_word_is_for_one_source_of_a_kind() -> None:
    mine, other = (PlanSource("websocket", {"url": url}) for url in ("ws://a", "ws://b"))
    assert (True, None) == (mine.replayable([mine]), other.replayable([mine]))
    assert PlanSource("socket", {}).replayable([PlanSource("socket", {})]) is False


def test_a_lost_range_is_told_from_other_failures() -> None:
    lost = connectors.explain("[KAFKA_DATA_LOSS.START_OFFSET_RESET] …", "orders")
    assert lost is not None
    assert ("range_lost", "orders") == (lost.code, lost.where.job)
