"""The local store: exclusive, whole, durable."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from fencepost.store import LocalStore
from fencepost.store.base import STALE_S

NAMES = 100


def race(root: str, who: bytes, won: multiprocessing.Queue[tuple[bytes, int]]) -> None:
    """Try to create every name."""
    store = LocalStore(root)
    for number in range(NAMES):
        if store.create(f"ledger/{number}", who):
            won.put((who, number))


def test_of_two_processes_that_create_one_name_exactly_one_wins(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    won: multiprocessing.Queue[tuple[bytes, int]] = context.Queue()
    racers = [context.Process(target=race, args=(str(tmp_path), who, won)) for who in (b"one", b"two")]
    for racer in racers:
        racer.start()
    winners = {number: who for who, number in (won.get(timeout=30) for _ in range(NAMES))}
    for racer in racers:
        racer.join()
    assert set(range(NAMES)) == set(winners)
    assert won.empty()
    store = LocalStore(tmp_path)
    assert winners == {number: store.read(f"ledger/{number}") for number in range(NAMES)}


def test_a_taken_name_keeps_its_bytes_and_no_temporary_file_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert (True, False) == (store.create("a/b", b"first"), store.create("a/b", b"second"))
    assert b"first" == store.read("a/b")
    assert ("b",) == store.list("a")


def test_replace_writes_over_and_delete_takes_files_and_folders(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.replace("a/b", b"old")
    store.replace("a/b", b"new")
    assert b"new" == store.read("a/b")
    store.delete("a/b")
    store.delete("a/b")
    assert None is store.read("a/b")
    store.delete("a")
    assert () == store.list("a")


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed fsync is never tried again, and the name is not taken."""
    store = LocalStore(tmp_path)
    store.create("ledger/0", b"x")

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output"):
        store.create("ledger/1", b"y")
    assert ("0",) == store.list("ledger")


def test_only_stale_temporary_files_are_swept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("ledger/0", b"x")
    old, young = tmp_path / "ledger" / ".1.aa.tmp", tmp_path / "ledger" / ".2.bb.tmp"
    for temp in (old, young):
        temp.touch()
    long_ago = time.time() - STALE_S - 1
    os.utime(old, (long_ago, long_ago))
    store.sweep("ledger")
    assert (".2.bb.tmp", "0") == store.list("ledger")


def test_a_sweep_minds_no_temporary_file_that_vanishes_under_it(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / ".1.tmp").symlink_to("gone")  # listed, and not there when it is looked at
    LocalStore(tmp_path).sweep("ledger")
