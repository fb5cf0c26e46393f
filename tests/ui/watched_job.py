"""A job without Spark under `fencepost run`: each driver runs two epochs more than the one before, and then lives on.

python watched_job.py FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fencepost_proof.stand_in import StandIn

import fencepost as fp
from fencepost.observe import journal
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.observe.journal import Observer
from fencepost.store.ledger import read
from fencepost.supervise.link import when_told_to

folder = Path(sys.argv[1])
checkpoint = folder / "checkpoint"
(checkpoint / "fencepost").mkdir(parents=True, exist_ok=True)
failures, _, _ = when_told_to("stand-in", str(checkpoint), fp.FixedDelay(attempts=9, delay="4 s"), lambda called: None)
journal.follow_environment()
sink = fp.SQLite(folder / "out.db", table="rows", name="db")
count = 4 * (len(failures) + 1)
StandIn(checkpoint, tuple(range(count)), 2, {"db": sink}, observer=Observer("stand-in")).run()
state = read(checkpoint)
PULSE.add(str(checkpoint), lambda: this_driver("stand-in", state.writer or 0, state.done_through))
time.sleep(3600)
