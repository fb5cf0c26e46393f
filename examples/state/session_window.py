"""Clicks grouped into sessions that end after 30 quiet minutes: python examples/state/session_window.py IN OUT

IN contains files with lines like {"user": "u", "at": "2024-05-01T10:00:00Z"}; the sessions go to
OUT/session_window.db. Time is event time. Both folders must exist.
"""

import sys
from datetime import datetime, timedelta
from typing import Any

import fencepost as fp
from pyspark.sql import Row

folder, out = sys.argv[1:]
QUIET = timedelta(minutes=30)


def click(record: Row, state: Row | None, timers: Any) -> tuple[None, tuple[list[datetime]]]:
    timers.at(record.at + QUIET)
    return None, ([*(state.clicks if state else []), record.at],)


def quiet(key: Row, state: Row, when: datetime) -> tuple[object, object]:
    later = [at for at in state.clicks if at > when - QUIET]
    if later and min(later) < when:
        return None, state  # the session continued
    ended = [at for at in state.clicks if at <= when - QUIET]
    return (key.user, min(ended), max(ended), len(ended)), (later,) if later else None


job = fp.Job("session-window", checkpoint=f"{out}/session_window")
clicks = job.read(fp.Files(folder, format="json", schema="user STRING, at TIMESTAMP", max_files_per_epoch=1))
sessions = fp.map_with_state(
    clicks.withWatermark("at", "10 minutes"),
    click,
    by="user",
    state="clicks ARRAY<TIMESTAMP>",  # of sessions that have not ended
    output="user STRING, first TIMESTAMP, last TIMESTAMP, clicks BIGINT",
    time="event",
    on_timer=quiet,
)
job.write(sessions, fp.SQLite(f"{out}/session_window.db", table="sessions"))

if __name__ == "__main__":
    job.run(until="available")
