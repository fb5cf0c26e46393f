"""Where an epoch ends in its topics, from delivery reports and from decisions; no broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fencepost.connectors.kafka import offsets
from fencepost.connectors.kafka.fate import Denied, Silent
from fencepost.connectors.kafka.offsets import HOW_TO_READ, Deliveries, as_of, by_topic, instant, noted
from fencepost.connectors.kafka.sink import Kafka
from fencepost.contract import Asked
from fencepost.protocol.records import Epoch, Handle

OWN = Kafka("t", servers="localhost:9092")


@dataclass(frozen=True)
class Delivered:
    """A message as the client reports it."""

    at: tuple[str, int, int | None]

    def topic(self) -> str:
        return self.at[0]

    def partition(self) -> int:
        return self.at[1]

    def offset(self) -> int | None:
        return self.at[2]


def handle(ends: dict[str, dict[str, int]] | None) -> Handle:
    return Handle("h", "kafka", 1, body={} if ends is None else {"ends": ends})


def asked(*epochs: dict[str, dict[str, int]] | None, first: int = 0, whole: bool = True) -> Asked:
    handles = {Epoch(first + n): (handle(ends),) for n, ends in enumerate(epochs)}
    return Asked(lineage="l", epochs=handles, whole=whole)


# --- delivery reports


def test_the_last_message_of_each_partition_counts_and_the_first_outcome_is_kept() -> None:
    found, reports = Deliveries(), dict[Any, Any]()
    report = found.reporter(4, reports)
    messages = [Delivered(at) for at in (("t", 0, 7), ("t", 1, 3), ("t", 0, 8), ("u", 0, 0))]
    for message in messages:
        report(None, message)
    assert {None: messages[0]} == reports
    assert {("t", 0): 9, ("t", 1): 4, ("u", 0): 1} == found.ends([("t", 0), ("t", 1), ("u", 0)])


def test_an_offset_that_the_client_does_not_know_makes_the_rest_unknown_unless_a_later_one_is_known() -> None:
    found = Deliveries()
    report = found.reporter(2, {})
    report(None, Delivered(("t", 0, None)))
    assert None is found.ends([("t", 0)])
    report(None, Delivered(("t", 0, 5)))
    assert {("t", 0): 6} == found.ends([("t", 0)])


def test_a_partition_without_a_report_is_unknown() -> None:
    found = Deliveries()
    found.reporter(1, {})(None, Delivered(("t", 0, 5)))
    assert None is found.ends([("t", 0), ("t", 1)])


def test_a_large_epoch_is_not_looked_at_message_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "MOST", 3)
    found, reports = Deliveries(), dict[Any, Any]()
    found.reporter(3, reports)(None, Delivered(("t", 0, 5)))
    assert {("t", 0): 6} == found.ends([("t", 0)])
    assert reports.setdefault == found.reporter(1, reports)
    assert None is found.ends([("t", 0)])


def test_ends_are_sorted_by_number_and_noted_as_json_can_hold_them() -> None:
    ends = by_topic({("t", 10): 1, ("t", 2): 4, ("a", 0): 3})
    assert ["a", "t"] == [*ends]
    assert [2, 10] == [*ends["t"]]
    assert {"a": {"0": 3}, "t": {"2": 4, "10": 1}} == noted(ends)


# --- decisions


def test_the_newest_of_each_partition_up_to_the_epoch_counts() -> None:
    known = asked({"t": {"0": 1, "1": 1}}, {"t": {"0": 5}, "u": {"0": 2}}, {"t": {"1": 9}})
    expected = ['{"t":{"0":1,"1":1}}', '{"t":{"0":5,"1":1},"u":{"0":2}}', '{"t":{"0":5,"1":9},"u":{"0":2}}']
    assert expected == [instant(known, Epoch(epoch)).text for epoch in range(3)]
    assert {"t": {"0": 5, "1": 9}, "u": {"0": 2}} == instant(known, Epoch(2)).facts["ends"]
    assert not instant(known, Epoch(2)).exact


def test_an_epoch_that_is_not_retained_or_noted_nothing_is_unknown() -> None:
    known = asked({"t": {"0": 1}}, None, {}, first=7)
    for epoch, why in (
        (5, "epoch 5, the last that wrote to it, is no longer retained in the ledger; it is unknown below epoch 7"),
        (8, "where epoch 8 ends was not noted: by an older fencepost, or the brokers did not say"),
        (9, "where epoch 9 ends was not noted: by an older fencepost, or the brokers did not say"),
    ):
        found = instant(known, Epoch(epoch))
        assert ("", False, why) == (found.text, found.exact, found.why)


def test_of_several_handles_one_that_was_written_again_counts() -> None:
    """A task's transaction was lost, and its rows were written again behind the others."""
    both = (handle({"t": {"0": 4, "1": 4}}), handle({"t": {"0": 4, "1": 9}}))
    found = instant(Asked(lineage="l", epochs={Epoch(0): both}), Epoch(0))
    assert {"t": {"0": 4, "1": 9}} == found.facts["ends"]


# --- beside what the cluster says


class Cluster:
    """A stand-in for the coordinator."""

    def __init__(self, *, partitions: int = 2, policy: str | None = "delete", starts: int = 0) -> None:
        self.partitions, self.policy, self.starting = partitions, policy, starts

    def cluster_id(self) -> str:
        return "c"

    def topic(self, name: str) -> Any:
        return None if not self.partitions else type("Topic", (), {"partitions": self.partitions, "id": "i"})

    def starts(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, self.starting)

    def setting(self, kind: str, resource: str, name: str) -> str | None:
        return self.policy


class Away(Cluster):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def cluster_id(self) -> str:
        raise self.error


def told(cluster: Cluster, known: Asked, sink: Kafka = OWN, epoch: int = 0) -> tuple[bool, str, str]:
    found = as_of(cluster, sink, known, Epoch(epoch))  # type: ignore[arg-type]
    return found.exact, found.text, found.why


def test_a_partition_that_was_not_there_yet_ends_at_its_beginning() -> None:
    text = '{"t":{"0":4,"1":0,"2":0}}'
    assert (True, text, HOW_TO_READ) == told(Cluster(partitions=3), asked({"t": {"0": 4}}, whole=False))


def test_what_the_cluster_removed_is_not_exact() -> None:
    known = asked({"t": {"0": 4, "1": 2}})
    text = '{"t":{"0":4,"1":2}}'
    compacted = "topic 't' is compacted: a row that was there is removed once a later one has its key"
    assert (False, text, compacted) == told(Cluster(policy="compact,delete"), known)
    hidden = "it does not say whether it compacts topic 't', which removes rows that were there"
    assert (False, text, hidden) == told(Cluster(policy=None), known)
    assert (True, text, HOW_TO_READ) == told(Cluster(starts=2), known)  # some of it, as a topic does
    gone = "retention has removed all that was in partition 1 of topic 't'"
    assert (False, text, gone) == told(Cluster(starts=3), known)
    assert (False, '{"t":{}}', "topic 't' does not exist") == told(Cluster(partitions=0), known)


def test_topics_that_a_column_names_are_known_as_far_as_the_ledger_goes_back() -> None:
    sink = Kafka(None, servers="localhost:9092", topic_column="to")
    known = [{"u": {"0": 4}}, {"v": {"1": 2}}]
    whole = '{"u":{"0":4,"1":0},"v":{"0":0,"1":2}}'
    assert (True, whole, HOW_TO_READ) == told(Cluster(), asked(*known), sink, 1)
    why = "rows go to topics that a column names: partitions that no epoch since 7 wrote to are unknown"
    assert (False, '{"u":{"0":4},"v":{"1":2}}', why) == told(Cluster(), asked(*known, first=7, whole=False), sink, 8)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Silent("NodeNotReadyError"), "it does not answer (NodeNotReadyError), so these offsets were not checked"),
        (Denied("TopicAuthorization"), "it denies the request (TopicAuthorization), so these offsets were not checked"),
    ],
)
def test_a_cluster_that_does_not_answer_leaves_what_the_ledger_says(error: Exception, why: str) -> None:
    found = as_of(Away(error), OWN, asked({"t": {"0": 4}}), Epoch(0))  # type: ignore[arg-type]
    assert (False, False, '{"t":{"0":4}}', why) == (found.heard, found.exact, found.text, found.why)
