"""All that a checkpoint tells, for pages, metrics and terminals that look again and again."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ended import ended, tree
from golden import unpacked
from long_ledger import LINEAGE, make

from fencepost.errors import BadConfig, CheckpointRefused
from fencepost.observe.archive import JobArchive, Spread, Wanted, rows_per_s
from fencepost.observe.events import Event, Kind
from fencepost.observe.health import look
from fencepost.observe.history import read
from fencepost.observe.journal import Follower, Journal, older_of, path_of
from fencepost.store.base import record_name
from fencepost.store.ledger import LedgerReader
from fencepost.store.local import LocalStore

FAULTS = ["", "decide.after=kill@2", "decide.before=kill@2", "vote.before=kill@1", "commit.after=kill@2"]


@pytest.mark.parametrize("fault", FAULTS)
def test_it_says_the_same_as_the_commands_that_read_everything(fault: str, tmp_path: Path) -> None:
    checkpoint = ended(tmp_path, fault)
    archive = JobArchive(checkpoint)
    assert read(checkpoint).epochs == tuple(reversed(archive.page(Wanted()).epochs))
    told, said = archive.health(), look(checkpoint)
    assert (said.condition, said.epoch, said.writer, said.flight) == (
        told.condition,
        told.epoch,
        told.writer,
        told.flight,
    )


def test_looking_changes_nothing(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path, "decide.after=kill@2")
    before = tree(checkpoint)
    archive = JobArchive(checkpoint)
    archive.summary(), archive.page(Wanted()), archive.epoch(1), archive.timeline(), archive.drivers(), archive.plan()
    assert before == tree(checkpoint)


def test_what_is_decided_and_not_in_the_sink_yet_is_seen(tmp_path: Path) -> None:
    (sink,) = JobArchive(ended(tmp_path / "a", "decide.after=kill@2")).summary().sinks
    assert ("db", 1, 0, False) == (sink.name, sink.decided, sink.confirmed, sink.meets)
    (sink,) = JobArchive(ended(tmp_path / "b")).summary().sinks
    assert (1, 1, True) == (sink.decided, sink.confirmed, sink.meets)


def test_what_is_read_and_not_decided_yet_is_seen(tmp_path: Path) -> None:
    (source,) = JobArchive(ended(tmp_path / "a", "decide.before=kill@2")).summary().sources
    assert ('{"position":4}', '{"position":2}', False) == (source.reading, source.decided, source.meets)
    (source,) = JobArchive(ended(tmp_path / "b")).summary().sources
    assert source.meets


def test_one_epoch_with_its_record_and_its_handles(tmp_path: Path) -> None:
    found = JobArchive(ended(tmp_path)).epoch(1)
    assert found.record is not None
    assert (1, "complete", 2) == (found.epoch.epoch, found.epoch.standing, found.epoch.rows)
    assert [("db", 2, ())] == [(handle.sink, handle.rows, handle.kept) for handle in found.handles]
    assert {"opened", "voted", "decided", "committed", "complete"} <= {event.kind.value for event in found.events}
    assert '"epoch": 1' in found.text


@pytest.mark.parametrize("number", [7, 10**30, -1])
def test_an_epoch_that_never_was_is_refused(number: int, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="Nothing is known about epoch") as caught:
        JobArchive(ended(tmp_path)).epoch(number)
    assert "0 to 1" in caught.value.next


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is read, and what is listed, from here on."""
    done: Counter[str] = Counter()
    for name in ("read", "list"):
        before: Any = getattr(LocalStore, name)

        def counted(self: Any, *given: Any, before: Any = before, name: str = name) -> Any:
            done[name] += "/ledger" in given[0]
            return before(self, *given)

        monkeypatch.setattr(LocalStore, name, counted)
    return done


def test_a_long_ledger_is_opened_by_its_end_and_older_epochs_are_found_by_halving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make(tmp_path / "checkpoint", 3000)
    done = counting(monkeypatch)
    archive = JobArchive(checkpoint)
    found = archive.summary()
    assert (2999, "stopped", 78) == (found.health.epoch, found.health.condition, len(found.recent))
    assert found.verified is not None
    assert found.verified > 2700
    assert done["read"] < 250
    done.clear()
    page = archive.page(Wanted(before=1000, count=20))
    assert list(range(999, 979, -1)) == [one.epoch for one in page.epochs]
    assert (980, 0, 2999) == (page.before, page.oldest, page.newest)
    assert 500 == archive.epoch(500).epoch.epoch
    assert done["read"] < 100
    assert done["list"] == 0
    assert archive.page(Wanted(count=7)) == JobArchive(checkpoint).page(Wanted(count=7))


def test_every_page_together_is_every_epoch_once(tmp_path: Path) -> None:
    archive = JobArchive(make(tmp_path / "checkpoint", 230, every=17))
    seen: list[int] = []
    before = None
    while True:
        page = archive.page(Wanted(before=before, count=50))
        seen += [one.epoch for one in page.epochs]
        before = page.before
        if before is None:
            break
    assert list(range(229, -1, -1)) == seen


def test_pages_are_filtered(tmp_path: Path) -> None:
    archive = JobArchive(make(tmp_path / "checkpoint", 60))
    with_rows = [one.epoch for one in archive.page(Wanted(sink="db", count=100)).epochs]
    assert [number for number in range(59, -1, -1) if number % 7] == with_rows
    assert () == archive.page(Wanted(trouble=True)).epochs
    assert () == archive.page(Wanted(standing="failed")).epochs
    assert 50 == len(archive.page(Wanted(standing="complete")).epochs)


def test_figures_are_spread_over_the_epochs_that_were_asked_for(tmp_path: Path) -> None:
    archive = JobArchive(make(tmp_path / "checkpoint", 200))
    assert {"pre-commit", "vote", "decide", "commit", "all"} == archive.spreads().keys()
    assert (200, 51) == (archive.spreads()["all"].count, archive.spreads(100, 150)["all"].count)
    assert {} == archive.spreads(1000)
    assert Spread(count=100, p50=50, p90=90, p99=99, longest=100) == Spread.of([float(n) for n in range(1, 101)])


def test_a_record_that_is_damaged_is_said_and_one_that_was_repaired_is_read_again(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "checkpoint", 30)
    archive = JobArchive(checkpoint)
    record = checkpoint / record_name(LINEAGE, 20)
    whole = record.read_bytes()
    record.write_bytes(whole.replace(b"position", b"positjon"))
    found = archive.summary()
    assert found.health.damage is not None
    assert ("ledger_damaged", ()) == (found.health.damage.code, found.recent)
    with pytest.raises(CheckpointRefused):
        archive.page(Wanted())
    record.write_bytes(whole)
    assert archive.summary().health.damage is None


def test_a_checkpoint_that_is_gone_is_said(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    archive = JobArchive(checkpoint)
    archive.summary()
    shutil.rmtree(checkpoint)
    with pytest.raises(CheckpointRefused) as caught:
        archive.summary()
    assert "no_ledger" == caught.value.code


def test_a_reader_sees_what_is_appended_and_what_another_lineage_continues(tmp_path: Path) -> None:
    short = make(tmp_path / "short", 5)
    whole = make(tmp_path / "whole", 9)
    reader = LedgerReader(short)
    assert 6 == reader.state(200).last - 1
    (short / record_name(LINEAGE, 7)).unlink()  # the `done` of the short one: the longer one goes on instead
    reader = LedgerReader(short)
    assert 6 == reader.state(200).last
    for number in range(7, 12):
        shutil.copy(whole / record_name(LINEAGE, number), short / record_name(LINEAGE, number))
    assert (11, 8) == (reader.state(200).last, reader.state(200).done_through)


@pytest.mark.parametrize("name", ["stopped", "undecided", "kafka"])
def test_checkpoints_of_real_jobs_are_read(name: str) -> None:
    with unpacked(name) as where:
        archive = JobArchive(where.root / "checkpoint")
        found = archive.summary()
        assert {"stopped": "stopped", "undecided": "dead", "kafka": "dead"}[name] in (
            found.health.condition,
            "dead" if found.health.condition == "unknown" else "",
        )
        assert found.recent
        assert found.sources
        if name == "kafka":
            assert all(sink.deadline_s is not None and sink.deadline_s < 0 for sink in found.sinks if not sink.meets)
            assert not all(sink.meets for sink in found.sinks)


def event(kind: Kind, at: str, **facts: Any) -> Event:
    return Event(kind=kind, job="j", at=at, pid=1, **facts)


def test_rows_a_second_are_those_of_the_last_minute() -> None:
    done = [event(Kind.COMPLETE, f"2026-01-01T00:{n // 60:02}:{n % 60:02}+00:00", rows=10) for n in range(0, 180, 2)]
    assert 5.0 == rows_per_s(done)
    assert rows_per_s(done[:1]) is None
    assert rows_per_s([]) is None


def test_a_follower_reads_on_over_a_cut_line_and_a_rotation(tmp_path: Path) -> None:
    (tmp_path / "fencepost").mkdir()
    follower, journal = Follower(tmp_path), Journal(tmp_path)
    assert [] == follower.events()
    for epoch in range(3):
        journal.note(event(Kind.COMPLETE, "2026-01-01T00:00:00+00:00", epoch=epoch))
    assert [0, 1, 2] == [one.epoch for one in follower.events()]
    with path_of(tmp_path).open("ab") as file:
        file.write(b'{"kind":"compl')
    assert [0, 1, 2] == [one.epoch for one in follower.events()]
    journal.note(event(Kind.COMPLETE, "2026-01-01T00:00:00+00:00", epoch=3))
    assert [0, 1, 2, 3] == [one.epoch for one in follower.events()]
    path_of(tmp_path).replace(older_of(path_of(tmp_path)))
    assert [0, 1, 2, 3] == [one.epoch for one in follower.events()]  # until the next event there is no new file
    journal.note(event(Kind.COMPLETE, "2026-01-01T00:00:00+00:00", epoch=4))
    assert [0, 1, 2, 3, 4] == [one.epoch for one in follower.events()]
    path_of(tmp_path).unlink()
    older_of(path_of(tmp_path)).unlink()
    assert [] == follower.events()
    assert follower.problem is None


def test_a_follower_gets_each_event_once_whatever_is_rotated_between_two_looks(tmp_path: Path) -> None:
    (tmp_path / "fencepost").mkdir()
    follower, journal = Follower(tmp_path), Journal(tmp_path)

    def note(*epochs: int) -> None:
        for epoch in epochs:
            journal.note(event(Kind.COMPLETE, "2026-01-01T00:00:00+00:00", epoch=epoch))

    def new() -> list[int | None]:
        return [one.epoch for one in follower.new()]

    note(0, 1)
    assert [0, 1] == new()
    note(2)
    path_of(tmp_path).replace(older_of(path_of(tmp_path)))
    note(3)
    assert [2, 3] == new()
    assert [] == new()


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    path_of(checkpoint).unlink()
    path_of(checkpoint).mkdir()
    found = JobArchive(checkpoint).summary()
    assert found.journal is not None
    assert "cannot be read" in found.journal
    assert found.recent, "the ledger says what was decided all the same"
