"""Clicks as sessions that end after 30 quiet minutes of event time: python examples/state/session_window.py IN OUT

IN has files of lines like {"user": "u", "at": "2024-05-01T10:00:00Z"}; the sessions are in OUT/session_window.db. Both
folders must be there.
"""

import sys
from datetime import timedelta

import fencepost as fp

folder, out = sys.argv[1:]
QUIET = timedelta(minutes=30)


def click(record, state, timers):
    timers.at(record.at + QUIET)
    return None, ([*(state.clicks if state else []), record.at],)


def quiet(key, state, when):
    later = [at for at in state.clicks if at > when - QUIET]
    if later and min(later) < when:
        return None, state  # the session went on
    ended = [at for at in state.clicks if at <= when - QUIET]
    return (key.user, min(ended), max(ended), len(ended)), (later,) if later else None


job = fp.Job("session-window", checkpoint=f"{out}/session_window")
clicks = job.read(fp.Files(folder, format="json", schema="user STRING, at TIMESTAMP", max_files_per_epoch=1))
sessions = fp.map_with_state(
    clicks.withWatermark("at", "10 minutes"),
    by="user",
    state="clicks ARRAY<TIMESTAMP>",  # of sessions that have not ended
    output="user STRING, first TIMESTAMP, last TIMESTAMP, clicks BIGINT",
    time="event",
    on_timer=quiet,
)(click)
job.write(sessions, fp.SQLite(f"{out}/session_window.db", table="sessions"))

if __name__ == "__main__":
    job.run(until="available")
