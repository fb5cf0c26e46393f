"""What the coordinator's answer says about a decided transaction: every state × producer × epoch × start."""

from __future__ import annotations

import itertools

import pytest

from fencepost.connectors.kafka.fate import Fate, Transaction, fate_of

STATES = {
    "Ongoing": Fate.OPEN,
    "PrepareCommit": Fate.COMMITTED,
    "CompleteCommit": Fate.COMMITTED,
    "PrepareAbort": Fate.ABORTED,
    "CompleteAbort": Fate.ABORTED,
    "Empty": Fate.UNKNOWN,
    "Dead": Fate.UNKNOWN,
    "PrepareEpochFence": Fate.UNKNOWN,
    "a state of a later Kafka": Fate.UNKNOWN,
}
"""What each says of a transaction that is surely ours."""
BODY = {"transactional_id": "x", "producer_id": 1000, "producer_epoch": 7, "started_ms": 5000}


def found(state: str, pid: int = 1000, epoch: int = 7, started_ms: int = 5000) -> Transaction:
    return Transaction(id="x", state=state, pid=pid, epoch=epoch, started_ms=started_ms, timeout_ms=1)


@pytest.mark.parametrize("state", STATES)
def test_the_same_producer_epoch_and_start_are_ours(state: str) -> None:
    assert STATES[state] == fate_of(BODY, found(state))


@pytest.mark.parametrize("state", STATES)
def test_the_broker_raises_the_epoch_by_one_when_it_ends_a_transaction_but_never_while_it_is_open(state: str) -> None:
    expected = Fate.UNKNOWN if state == "Ongoing" else STATES[state]
    assert expected == fate_of(BODY, found(state, epoch=8))


@pytest.mark.parametrize("state", STATES)
def test_anything_else_proves_nothing(state: str) -> None:
    cases = [
        (pid, epoch, started_ms)
        for pid, epoch, started_ms in itertools.product((1000, 1001, -1), (-1, 0, 6, 7, 8, 9, 32767), (5000, 5001, -1))
        if (pid, started_ms) != (1000, 5000) or epoch not in (7, 8)
    ]
    assert 61 == len(cases)
    assert dict.fromkeys(cases, Fate.UNKNOWN) == {case: fate_of(BODY, found(state, *case)) for case in cases}


def test_an_id_that_nobody_knows_proves_nothing() -> None:
    assert Fate.UNKNOWN == fate_of(BODY, None)
