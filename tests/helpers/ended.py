"""Jobs on the stand-in engine that are over, one way or the other: what they left is real, and nobody lives."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fencepost_proof.stand_in import StandIn
from killing import wait

from fencepost import faults
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.observe.events import Kind
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.observe.journal import Observer


def ended(folder: Path, fault: str = "", *, journal: bool = True, word: bool = True) -> Path:
    """Run a job in a child until it ends or the fault does; its checkpoint."""
    checkpoint = folder / "checkpoint"
    pid = os.fork()
    if not pid:
        try:
            if fault:
                faults.arm({faults.ARM: fault})
            observer = Observer("stand-in") if journal else None
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / "fencepost").mkdir(exist_ok=True)
            if journal:
                PULSE.add(str(checkpoint), lambda: this_driver("stand-in", 1, None))
            sink = SQLite(folder / "out.db", table="rows", name="db")
            StandIn(checkpoint, (1, 3, 5, 7), 2, {"db": sink}, observer=observer).run()
            if observer and word:
                observer.note(Kind.STOPPED)
                PULSE.remove(str(checkpoint))
        finally:
            os._exit(0)
    assert wait(pid) == (-9 if fault else 0)
    return checkpoint


def tree(root: Path) -> dict[str, tuple[int, float]]:
    """Every file with its size and time: who only looks changes none of them."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() or path.is_dir()
    }


def wait_until(met: object, seconds: float = 180.0) -> None:
    """Until a function says yes."""
    assert callable(met)
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)
