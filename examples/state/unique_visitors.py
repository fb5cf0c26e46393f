"""Page views and unique visitors, consistent after any crash: python examples/state/unique_visitors.py IN OUT

IN contains files with lines like {"page": "/", "visitor": "v1"}. OUT/unique_visitors.db gets one row per view and
one row per visitor of a page; SELECT page, count(*) … GROUP BY page counts either. Both folders must exist.
"""

import sys

import fencepost as fp
from pyspark.sql import Row

folder, out = sys.argv[1:]


def first_time(view: Row, state: Row | None) -> tuple[tuple[str, str] | None, object]:
    if state:
        return None, state
    return (view.page, view.visitor), (True,)


job = fp.Job("unique-visitors", checkpoint=f"{out}/unique_visitors")
views = job.read(fp.Files(folder, format="json", schema="page STRING, visitor STRING", max_files_per_epoch=1))
visitors = fp.map_with_state(
    views,
    first_time,
    by=["page", "visitor"],  # one small state per visitor, not a growing one per page
    state="seen BOOLEAN",
    output="page STRING, visitor STRING",
)
# Two tables, one decision: a reader never sees more visitors than views.
job.write(views, fp.SQLite(f"{out}/unique_visitors.db", table="views"))
job.write(visitors, fp.SQLite(f"{out}/unique_visitors.db", table="visitors"))

if __name__ == "__main__":
    job.run(until="available")
