"""A job without Spark under `fencepost run`: each driver takes the next fault, and the last one gets to the end.

python scraped_job.py FOLDER COUNT [FAULT…]
"""

from __future__ import annotations

import sys
from pathlib import Path

from fencepost_proof.stand_in import StandIn

import fencepost as fp
from fencepost import faults
from fencepost.errors import FencepostError
from fencepost.observe import journal, registry
from fencepost.observe.journal import Observer
from fencepost.supervise.link import telling_the_end, when_told_to

folder, count, *planned = sys.argv[1:]
checkpoint = Path(folder) / "checkpoint"
(checkpoint / "fencepost").mkdir(parents=True, exist_ok=True)
failures, _, _ = when_told_to("stand-in", str(checkpoint), fp.FixedDelay(attempts=9, delay="0 s"), lambda called: None)
if len(failures) < len(planned):
    faults.arm({faults.ARM: planned[len(failures)]})
registry.note("stand-in", checkpoint, sys.argv[0])
journal.follow_environment()
observer = Observer("stand-in")
sink = fp.SQLite(Path(folder) / "out.db", table="rows", name="db")
with telling_the_end():
    try:
        StandIn(checkpoint, tuple(range(int(count))), 2, {"db": sink}, observer=observer).run()
    except FencepostError as error:
        observer.note_failure(error)
        raise
