"""With every login, how many there were in the hour before: python examples/state/logins_last_hour.py IN OUT

IN has files of lines like {"user": "u", "at": "2024-05-01T10:00:00Z"}; the counts are in OUT/logins_last_hour.db. Both
folders must be there.
"""

import sys
from datetime import timedelta

import fencepost as fp

folder, out = sys.argv[1:]
HOUR = timedelta(hours=1)


def count(login, state):
    recent = [at for at in (state.logins if state else []) if at > login.at - HOUR]
    recent.append(login.at)
    return (login.user, login.at, len(recent)), (recent,)


job = fp.Job("logins-last-hour", checkpoint=f"{out}/logins_last_hour")
logins = job.read(fp.Files(folder, format="json", schema="user STRING, at TIMESTAMP", max_files_per_epoch=1))
counts = fp.map_with_state(
    logins,
    by="user",
    order="at",
    state="logins ARRAY<TIMESTAMP>",
    output="user STRING, at TIMESTAMP, logins_last_hour INT",
    ttl="1 day",  # users who never come back are forgotten
)(count)
job.write(counts, fp.SQLite(f"{out}/logins_last_hour.db", table="counts"))

if __name__ == "__main__":
    job.run(until="available")
