"""A job for `fencepost run`: words in FOLDER/in are counted into FOLDER/out.db, and every line is kept.

python supervised_job.py FOLDER [PHASE]: as a standby it stands still in a phase of its warm-up, and says so by a file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost as fp
from fencepost.cli.demo_job import QUICK
from fencepost.connectors.table.session import TableSession
from fencepost.runtime.driver import Driver
from fencepost.supervise import warmup
from fencepost.supervise.link import link

FOLDER, PHASE = Path(sys.argv[1]), (*sys.argv[2:], None)[0]
supervisor = link()


def stand_still() -> None:
    """Until we are called; and a little longer, so that the job's own start has begun."""
    assert supervisor is not None
    (FOLDER / str(PHASE)).touch()
    supervisor.called.wait()
    time.sleep(1)


def first(act: Callable[[], None], owner: type, name: str) -> None:
    """Let it do something first, as long as we are not called."""
    real = getattr(owner, name)

    def later(*given: Any, **named: Any) -> Any:
        if supervisor is not None and not supervisor.called.is_set():
            act()
        return real(*given, **named)

    setattr(owner, name, later)


if supervisor is not None and supervisor.role == "standby":
    match PHASE:
        case "sink":
            first(stand_still, TableSession, "rehearse")
        case "start":
            first(stand_still, Driver, "recover")
        case "epochs":
            first((FOLDER / PHASE).touch, Driver, "run_epoch")
            warmup.LINES *= 100
            warmup.EPOCHS = len(warmup.LINES)
            warmup.PATIENCE_S = 3600

job = fp.Job("supervised", checkpoint=FOLDER / "ck", conf=QUICK)
lines = job.read(fp.Files(str(FOLDER / "in"), format="text", max_files_per_epoch=1))
words = lines.selectExpr("explode(split(value, ' ')) AS word")
job.write(words.groupBy("word").count(), fp.SQLite(FOLDER / "out.db", table="counts", key="word"))
job.write(lines, fp.SQLite(FOLDER / "lines.db", table="lines"))

if __name__ == "__main__":
    if supervisor is not None and supervisor.role == "standby" and PHASE == "session":
        stand_still()
    job.run()
