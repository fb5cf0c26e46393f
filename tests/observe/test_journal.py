"""The journal: typed events, bounded, whole lines from many processes, and never in the way of an epoch."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.stand_in import StandIn
from killing import wait

from fencepost import faults
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import EpochFailed, Fenced, Retryable, Where
from fencepost.observe import journal
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Journal, Observer, older_of, path_of

PROCESSES = 4
EACH = 400
SMALL = 30_000


def checkpoint(folder: Path) -> Path:
    (folder / "checkpoint" / "fencepost").mkdir(parents=True)
    return folder / "checkpoint"


def an_event(kind: Kind = Kind.COMPLETE, **facts: Any) -> Event:
    return Event(kind=kind, job="orders", at="2030-01-01T00:00:00.000+00:00", pid=os.getpid(), **facts)


def child(act: Callable[[], object]) -> int:
    """Fork, act, end without a word."""
    if pid := os.fork():
        return pid
    try:
        act()
    finally:
        os._exit(0)


# --- events


@pytest.mark.parametrize("kind", Kind)
def test_an_event_of_every_kind_comes_back_as_it_was(kind: Kind, tmp_path: Path) -> None:
    values: dict[str, Any] = {"int": 7, "float": 0.25, "str": 'näme "x"\n', "bool": True}
    full = {field.name: values[field.type.split(" ")[0]] for field in fields(Event) if field.type.endswith("| None")}
    assert len(full) > 10
    root = checkpoint(tmp_path)
    for event in (an_event(kind), an_event(kind, **full)):
        Journal(root).note(event)
    assert [an_event(kind), an_event(kind, **full)] == list(journal.read(root))


def test_what_a_later_version_wrote_is_left_out_and_the_rest_is_read(tmp_path: Path) -> None:
    root = checkpoint(tmp_path)
    Journal(root).note(an_event(epoch=1))
    with path_of(root).open("a") as file:
        file.write(json.dumps({**an_event(epoch=2).plain, "colour": "blue"}) + "\n")
        file.write(json.dumps({**an_event(epoch=3).plain, "kind": "not_known_yet"}) + "\n[]\nno json\n")
    assert [1, 2] == [event.epoch for event in journal.read(root)]


def test_an_error_is_noted_in_its_own_words_with_its_kind() -> None:
    told: list[Event] = []
    observer = Observer("orders")
    observer.call(told.append, Kind.FAILED, Kind.FENCED)
    error = EpochFailed("vote_failed", "It failed.", where=Where(epoch=3, sink="db"), next="Start again.")
    observer.note_failure(error)
    observer.note_failure(error)
    observer.note_failure(Fenced("fenced", "Another came.", next="Nothing."))
    assert [Kind.FAILED, Kind.FENCED] == [event.kind for event in told]
    first = told[0]
    assert ("vote_failed", "not_decided", 3, "db") == (first.code, first.reason, first.epoch, first.sink)
    assert ("It failed.", error.safe, "Start again.") == (first.what, first.safe, first.next)


# --- the file


def many_write(root: Path) -> None:
    """Several processes at once, each counting its events."""
    pids = []
    for number in range(PROCESSES):

        def write(number: int = number) -> None:
            mine = Journal(root)
            for count in range(EACH):
                mine.note(an_event(writer=number, epoch=count, what="x" * (count % 90)))

        pids.append(child(write))
    assert [0] * PROCESSES == [wait(pid) for pid in pids]


def complaints(root: Path) -> list[str]:
    """What is wrong with a journal that `many_write` wrote: mixed lines, lost ones, no bound."""
    found = []
    sizes = [file.stat().st_size for file in (older_of(path_of(root)), path_of(root)) if file.exists()]
    if max(sizes) > SMALL + PROCESSES * 300:
        found.append(f"no bound: {sizes}")
    counts: dict[int, list[int]] = defaultdict(list)
    for file in (older_of(path_of(root)), path_of(root)):
        for line in file.read_text().splitlines() if file.exists() else []:
            try:
                event = Event.of(json.loads(line))
                counts[event.writer or 0].append(event.epoch or 0)
            except (ValueError, KeyError, TypeError):
                found.append("a mixed line")
    for writer, mine in counts.items():
        if mine != list(range(mine[0], EACH)):
            found.append(f"writer {writer} lost events that are newer than others that are kept")
    if sum(sizes) < SMALL:
        found.append("more was thrown away than the bound asks for")
    return found


def test_several_processes_share_a_bounded_journal_and_none_loses_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "FULL", SMALL)
    root = checkpoint(tmp_path)
    many_write(root)
    assert [] == complaints(root)
    assert len(list(journal.read(root))) < PROCESSES * EACH


def test_who_reads_while_the_file_is_set_aside_misses_nothing_and_reads_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkpoint(tmp_path)
    Journal(root).note(an_event(epoch=1))
    path_of(root).rename(older_of(path_of(root)))
    Journal(root).note(an_event(epoch=2))
    lines = journal._lines

    def set_aside_right_after(path: Path) -> tuple[list[bytes], int | None]:
        found = lines(path)
        if path == path_of(root):
            path.replace(older_of(path))
            Journal(root).note(an_event(epoch=3))
        return found

    monkeypatch.setattr(journal, "_lines", set_aside_right_after)
    assert [2] == [event.epoch for event in journal.read(root)]
    monkeypatch.undo()
    assert [2, 3] == [event.epoch for event in journal.read(root)]


def in_two_calls(patch: pytest.MonkeyPatch) -> None:
    whole = os.write

    def halves(descriptor: int, data: bytes) -> int:
        first = whole(descriptor, data[:40])
        time.sleep(0.001)  # time for another one to write in between
        return first + whole(descriptor, data[40:])

    patch.setattr(os, "write", halves)


def without_a_look_who_was_first(patch: pytest.MonkeyPatch) -> None:
    """Every full file is set aside twice, as by a second process that found it full and acts one line too late."""
    append = Journal._append
    late: list[Journal] = []

    def set_aside(self: Journal, descriptor: int) -> None:
        self._path.replace(older_of(self._path))
        late.append(self)

    def append_and_come_late(self: Journal, line: bytes) -> bool:
        was_late = bool(late)
        written = append(self, line)
        if was_late:
            late.clear()
            self._path.replace(older_of(self._path))
        return written

    patch.setattr(Journal, "_set_aside", set_aside)
    patch.setattr(Journal, "_append", append_and_come_late)


def without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "_set_aside", lambda self, descriptor: None)


@pytest.mark.parametrize("sabotage", [in_two_calls, without_a_look_who_was_first, without_a_bound])
def test_a_journal_that_mixes_loses_or_grows_is_caught(
    sabotage: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "FULL", SMALL)
    sabotage(monkeypatch)
    for attempt in range(20):  # a race has to be lost for two of them
        root = checkpoint(tmp_path / str(attempt))
        many_write(root)
        if complaints(root):
            return
    pytest.fail("nobody noticed")


def test_what_was_cut_off_by_a_kill_costs_its_own_event_and_no_other(tmp_path: Path) -> None:
    root = checkpoint(tmp_path)

    def die_in_the_middle() -> None:
        mine = Journal(root)
        mine.note(an_event(epoch=1))
        whole = os.write

        def half(descriptor: int, data: bytes) -> int:
            whole(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.write = half  # type: ignore[assignment]
        mine.note(an_event(epoch=2))

    assert -signal.SIGKILL == wait(child(die_in_the_middle))
    assert [1] == [event.epoch for event in journal.read(root)]
    Journal(root).note(an_event(epoch=3))
    Journal(root).note(an_event(epoch=4))
    assert [1, 3, 4] == [event.epoch for event in journal.read(root)]


# --- epochs


def job(folder: Path, observer: Observer | None, **changes: Any) -> StandIn:
    sinks = {name: SQLite(folder / f"{name}.db", table="rows", name=name) for name in ("one", "two")}
    settings: dict[str, Any] = {"checkpoint": folder / "checkpoint", "numbers": (1, 3, 5, 7), "per_epoch": 2, **changes}
    return StandIn(sinks=sinks, observer=observer, **settings)


def rows(folder: Path) -> list[list[tuple[Any, ...]]]:
    found = []
    for name in ("one", "two"):
        with closing(sqlite3.connect(folder / f"{name}.db")) as connection:
            found.append(connection.execute("SELECT * FROM rows ORDER BY 1").fetchall())
    return found


def records(folder: Path) -> list[str]:
    return [json.loads(file.read_text())["kind"] for file in sorted(folder.glob("checkpoint/fencepost/*/ledger/*"))]


def test_an_epoch_is_noted_step_by_step_in_the_order_of_the_protocol(tmp_path: Path) -> None:
    job(tmp_path, Observer("stand-in")).run()
    events = list(journal.read(tmp_path / "checkpoint"))
    assert [Kind.STARTED, Kind.RECOVERED] == [event.kind for event in events[:2]]
    steps = [Kind.OPENED, Kind.PRE_COMMITTED, *[Kind.VOTED] * 2, Kind.DECIDED, *[Kind.COMMITTED] * 2, Kind.COMPLETE]
    for epoch in (0, 1):
        mine = [event for event in events if event.epoch == epoch]
        assert steps == [event.kind for event in mine]
        assert {1} == {event.writer for event in mine}
        assert ["one", "two"] == sorted(event.sink or "" for event in mine if event.kind is Kind.VOTED)
        assert (4, 2, 4) == (mine[0].rows, mine[1].units, mine[-1].rows)
        assert all(event.seconds is not None and event.seconds >= 0 for event in mine[1:])


def test_a_journal_that_cannot_be_written_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    path_of(tmp_path / "with" / "checkpoint").mkdir(parents=True)  # nobody appends to a folder
    job(tmp_path / "with", Observer("stand-in")).run()
    job(tmp_path / "without", None).run()
    assert rows(tmp_path / "without") == rows(tmp_path / "with")
    assert records(tmp_path / "without") == records(tmp_path / "with")
    assert 1 == sum("cannot write the journal" in line for line in caplog.text.splitlines())
    assert [] == list(journal.read(tmp_path / "with" / "checkpoint"))


# --- callbacks


def listening(file: Path) -> Observer:
    """Tells a file what a callback was told: it outlives a kill."""
    observer = Observer("stand-in")

    def tell(event: Event) -> None:
        with file.open("a") as told:
            told.write(f"{event.epoch}{' again' if event.again else ''}\n")

    observer.call(tell, Kind.COMPLETE)
    return observer


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("decide.after=kill@2", ["0", "1 again"]),  # decided, told to nobody before the kill
        ("complete.before=kill@2", ["0", "1", "1 again"]),  # told, and then killed
        ("vote.before=kill@3", ["0", "0 again", "1"]),  # not decided: it runs again
    ],
)
def test_whoever_is_told_of_complete_epochs_hears_of_each_at_least_once_through_a_kill(
    point: str, expected: list[str], tmp_path: Path
) -> None:
    told = tmp_path / "told"

    def die() -> None:
        faults.arm({faults.ARM: point})
        job(tmp_path, listening(told)).run()

    assert -signal.SIGKILL == wait(child(die))
    job(tmp_path, listening(told)).run()
    assert expected == told.read_text().splitlines()
    assert {"0", "1"} == {line.split()[0] for line in expected}


def test_a_callback_that_raises_changes_no_data_and_is_noted_by_its_type_alone(tmp_path: Path) -> None:
    observer = Observer("stand-in")

    @lambda callback: observer.call(callback, Kind.COMPLETE)
    def careless(event: Event) -> None:
        raise RuntimeError(f"canary-4711 in epoch {event.epoch}")

    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    job(tmp_path / "with", observer).run()
    job(tmp_path / "without", None).run()
    assert rows(tmp_path / "without") == rows(tmp_path / "with")
    assert records(tmp_path / "without") == records(tmp_path / "with")
    events = list(journal.read(tmp_path / "with" / "checkpoint"))
    failed = [event for event in events if event.kind is Kind.CALLBACK_FAILED]
    assert [0, 1] == [event.epoch for event in failed]
    assert all("careless raised RuntimeError" in (event.what or "") for event in failed)
    assert "canary" not in path_of(tmp_path / "with" / "checkpoint").read_text()


def test_an_epoch_that_fails_is_noted_as_such_and_never_as_complete(tmp_path: Path) -> None:
    def fail() -> None:
        faults.arm({faults.ARM: "vote.before=fail@3"})
        observer = Observer("stand-in")
        try:
            job(tmp_path, observer).run()
        except Retryable as error:
            observer.note_failure(error)

    assert 0 == wait(child(fail))
    events = [event for event in journal.read(tmp_path / "checkpoint") if event.epoch == 1]
    assert [Kind.OPENED, Kind.PRE_COMMITTED, Kind.FAILED] == [event.kind for event in events]
    assert "not_decided" == events[-1].reason
