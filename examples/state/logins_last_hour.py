"""For every login, how many logins the user had in the hour up to it: python examples/state/logins_last_hour.py IN OUT

IN contains files with lines like {"user": "u", "at": "2024-05-01T10:00:00Z"}; the counts go to
OUT/logins_last_hour.db. Both folders must exist.
"""

import sys
from datetime import datetime, timedelta

import fencepost as fp
from pyspark.sql import Row

folder, out = sys.argv[1:]
HOUR = timedelta(hours=1)


def count(login: Row, state: Row | None) -> tuple[tuple[str, datetime, int], tuple[list[datetime]]]:
    recent = [at for at in (state.logins if state else []) if at > login.at - HOUR]
    recent.append(login.at)
    return (login.user, login.at, len(recent)), (recent,)


job = fp.Job("logins-last-hour", checkpoint=f"{out}/logins_last_hour")
logins = job.read(fp.Files(folder, format="json", schema="user STRING, at TIMESTAMP", max_files_per_epoch=1))
counts = fp.map_with_state(
    logins,
    count,
    by="user",
    order="at",
    state="logins ARRAY<TIMESTAMP>",
    output="user STRING, at TIMESTAMP, logins_last_hour INT",
    ttl="1 day",  # users who never come back are forgotten
)
job.write(counts, fp.SQLite(f"{out}/logins_last_hour.db", table="counts"))

if __name__ == "__main__":
    job.run(until="available")
