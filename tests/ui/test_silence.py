"""Stores that do not answer: nobody waits for the others', and what was last known is shown."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from addresses import codes
from browser import get
from ended import ended, wait_until
from starlette.types import ASGIApp

from fencepost.observe import registry
from fencepost.observe.archive import JobArchive, Summary
from fencepost.store import RemotePath, place
from fencepost.ui import api, shelf
from fencepost.ui.application import application
from fencepost.ui.shelf import Shelf

FAR = [f"s3a://bucket{number}/orders" for number in range(5)]
REAL = JobArchive.summary


class Stores:
    """What remote stores do when they are asked: at first nothing."""

    def __init__(self, near: Path) -> None:
        self._near = JobArchive(near)
        self.go = threading.Event()
        self.asked = threading.Barrier(len(FAR))
        self.is_well = False

    def summary(self, archive: JobArchive, recent: int = 78) -> Summary:
        if isinstance(archive.root, RemotePath) and not self.is_well:
            self.asked.wait(60)  # broken if one is asked after the other
            self.go.wait(60)
        return REAL(self._near, recent)


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    made = Stores(ended(tmp_path))
    monkeypatch.setattr(JobArchive, "summary", lambda self, recent=78: made.summary(self, recent))
    monkeypatch.setattr(JobArchive, "rewrites", lambda self, after, upto: 0)
    monkeypatch.setattr(shelf, "PATIENCE_S", 0.3)
    monkeypatch.setattr(shelf, "SHORT_S", 0.4)  # longer, so that one wait is enough to call it silent
    monkeypatch.setattr(shelf, "FRESH_S", 0.0)
    monkeypatch.setattr("fencepost.observe.metrics.PATIENCE_S", 0.3)
    monkeypatch.setenv("FENCEPOST_HOME", str(tmp_path / "home"))
    return made


def pages(near: Path) -> ASGIApp:
    jobs = Shelf([near, *(place(url) for url in FAR)], registered=False)
    return application(jobs, codes, api.routes(jobs, codes))


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/metrics"])
def test_silent_stores_are_asked_side_by_side_and_hold_up_nobody(path: str, stores: Stores, tmp_path: Path) -> None:
    app = pages(tmp_path / "checkpoint")
    answer = get(app, path)  # while none of them answers
    assert 200 == answer.status
    assert "stand-in" in answer.text
    if path == "/metrics":
        ours = [line for line in answer.text.splitlines() if line.startswith("fencepost_checkpoint_readable")]
        assert sorted(["0.0"] * len(FAR) + ["1.0"]) == sorted(line.split()[-1] for line in ours)
    else:
        assert len(FAR) == answer.text.count("has not answered yet")
    assert not stores.asked.broken
    stores.go.set()


def test_a_store_that_falls_silent_is_said_since_when_with_what_was_last_known(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, key = pages(tmp_path / "checkpoint"), registry.key_of(FAR[0])
    stores.is_well = True
    with monkeypatch.context() as patient:  # a busy machine takes its time to read what is there
        patient.setattr(shelf, "PATIENCE_S", 60.0)
        patient.setattr(shelf, "SHORT_S", 60.0)
        assert "stopped cleanly" in get(app, f"/jobs/{key}").text
        assert "answered" not in get(app, "/").text
    stores.is_well = False
    for _ in range(2):  # asked once, by however many pages
        page = get(app, "/").text
        assert len(FAR) == page.count("[store_slow] since ")
        assert 1 + len(FAR) == page.count("stopped cleanly")
    assert "What follows was read" in get(app, f"/jobs/{key}").text
    stores.is_well = True
    stores.go.set()
    wait_until(lambda: "store_slow" not in get(app, "/").text)
