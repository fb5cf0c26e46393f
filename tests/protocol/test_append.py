"""How a driver finds out that it is old, and what it does when the store gives no answer."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.errors import CheckpointRefused, Fenced
from fencepost.protocol import effects as e
from fencepost.protocol.append import Book, append, check_readable, new_ledger, read_ledger, try_append
from fencepost.protocol.epoch import check_not_replaced, decide, run_plainly
from fencepost.protocol.format import seal, unseal
from fencepost.protocol.records import Body, Epoch, Lineage, Number, Sealed, Writer, WriterNumber


class Store:
    """A ledger in memory; `answers` are given to the next creates instead of the truth: (was it done, what is said)."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.answers: list[tuple[bool, e.Created]] = []
        self.run(new_ledger("l", Lineage("job", "exactly_once", Epoch(0), {}, {}), clock))

    def run(self, step: e.Step[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                effect = step.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = self.do(effect)

    def do(self, effect: e.Effect[Any]) -> Any:
        match effect:
            case e.Names():
                return tuple(sorted(self.records))
            case e.Read(number=number):
                return self.records.get(number)
            case e.Create(number=number, data=data):
                done, said = self.answers.pop(0) if self.answers else (True, e.Created.CREATED)
                if done and number in self.records:
                    return e.Created.TAKEN
                if done:
                    self.records[number] = data
                return said
        raise AssertionError(effect)

    def driver(self, start: str) -> Book:
        book = Book(self.run(read_ledger("l", "job")), WriterNumber(0), clock)
        assert self.run(try_append(book, writer(start), "takeover"))
        return book


def clock() -> str:
    return "noon"


def writer(start: str) -> Body:
    return Writer(start, "host", 1, {})


def test_a_driver_whose_number_is_taken_is_fenced() -> None:
    store = Store()
    old = store.driver("old")
    store.driver("new")
    with pytest.raises(Fenced, match="replaced by writer 2: process 1 on host, which took over at noon"):
        store.run(append(old, Sealed("x", Epoch(0), "again"), "seal"))
    assert [0, 1, 2] == sorted(store.records)


def test_a_driver_that_appends_nothing_is_fenced_before_it_writes() -> None:
    store = Store()
    old = store.driver("old")
    store.driver("new")
    with pytest.raises(Fenced, match="replaced by writer 2"):
        store.run(run_plainly(old, Epoch(0)))


def test_a_record_in_a_hole_that_retention_left_fences_its_driver() -> None:
    store = Store()
    old = store.driver("old")
    store.driver("new")
    store.driver("newer")
    del store.records[2]
    assert not store.run(try_append(old, Sealed("x", Epoch(0), "again"), "seal"))
    assert Number(1) == old.state.last


def test_a_number_whose_predecessor_is_gone_fences_its_driver() -> None:
    store = Store()
    old = store.driver("old")
    del store.records[1]
    assert not store.run(try_append(old, Sealed("x", Epoch(0), "again"), "seal"))


def test_a_number_that_was_taken_and_retired_again_fences_its_driver() -> None:
    store = Store()
    old = store.driver("old")
    store.answers = [(False, e.Created.TAKEN)]
    assert not store.run(try_append(old, Sealed("x", Epoch(0), "again"), "seal"))


@pytest.mark.parametrize("done", [True, False], ids=["and it was done", "and it was not done"])
def test_no_answer_is_settled_by_reading(done: bool) -> None:
    store = Store()
    book = store.driver("only")
    store.answers = [(done, e.Created.UNKNOWN)]
    store.run(append(book, Sealed("x", Epoch(0), "again"), "seal"))
    assert book.state.sealed
    assert [0, 1, 2] == sorted(store.records)


def test_no_answer_and_a_foreign_record_fences() -> None:
    store = Store()
    old = store.driver("old")
    store.driver("new")
    store.answers = [(False, e.Created.UNKNOWN)]
    with pytest.raises(Fenced):
        store.run(append(old, Sealed("x", Epoch(0), "again"), "seal"))


def test_the_first_record_is_asked_for_until_there_is_an_answer() -> None:
    store = Store()
    store.records.clear()
    store.answers = [(False, e.Created.UNKNOWN)]
    store.run(new_ledger("l", Lineage("job", "exactly_once", Epoch(0), {}, {}), clock))
    assert [0] == list(store.records)


def test_a_failed_append_leaves_the_drivers_view_as_it_was() -> None:
    store = Store()
    old = store.driver("old")
    before = (old.state, old.writer, old.present)
    store.driver("new")
    assert not store.run(try_append(old, writer("again"), "takeover"))
    assert before == (old.state, old.writer, old.present)


@pytest.mark.parametrize("created", [True, False], ids=["ours stands", "the number was taken"])
def test_a_fenced_driver_knows_whether_its_decision_stands_in_the_ledger(created: bool) -> None:
    """If it does, the newer driver finishes it, and its handles must not be aborted."""
    store = Store()
    old = store.driver("old")
    if not created:
        store.driver("new")
    step = decide(old, Epoch(0), 'v1\n{}\n{"position":1}', (), e.Snapshot("v1\n{}", {}))
    with pytest.raises(Fenced):
        store.run(step if not created else _taken_over_after_the_record(store, step))
    assert (Epoch(0) if created else None) == old.deciding
    assert created == (store.run(read_ledger("l", "job")).open is not None)


def _taken_over_after_the_record(store: Store, step: e.Step[Any]) -> e.Step[Any]:
    """A newer driver starts between our record and our look for newer ones."""
    answer: Any = None
    while True:
        effect = step.send(answer)
        answer = yield effect
        if isinstance(effect, e.Create):
            store.driver("new")


def test_a_driver_that_was_replaced_by_one_of_a_newer_fencepost_is_fenced() -> None:
    store = Store()
    old = store.driver("old")
    store.driver("new")
    store.records[2] = seal({**unseal(store.records[2]), "format": 2, "fencepost": "9.1.0"})
    for step in (append(old, Sealed("x", Epoch(0), "again"), "seal"), check_not_replaced(old)):
        with pytest.raises(Fenced, match="a newer fencepost"):
            store.run(step)
    assert [0, 1, 2] == sorted(store.records)


def test_a_ledger_that_a_newer_fencepost_has_written_to_is_refused_by_its_newest_record() -> None:
    store = Store()
    store.driver("old")
    store.run(check_readable("l"))
    store.records[1] = seal({**unseal(store.records[1]), "format": 2, "fencepost": "9.1.0"})
    for step in (check_readable("l"), read_ledger("l", "job")):
        with pytest.raises(CheckpointRefused, match="newer_format"):
            store.run(step)
    store.records[1] = b"torn"
    store.run(check_readable("l"))  # whoever reads all of it says what is wrong
