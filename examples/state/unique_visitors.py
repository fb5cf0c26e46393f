"""Page views against unique visitors, in step after any crash: python examples/state/unique_visitors.py IN OUT

IN has files of lines like {"page": "/", "visitor": "v1"}. OUT/unique_visitors.db has a row per view and a row per
visitor of a page; SELECT page, count(*) … GROUP BY page counts either. Both folders must be there.
"""

import sys

import fencepost as fp

folder, out = sys.argv[1:]


def first_time(view, state):
    if state:
        return None, state
    return (view.page, view.visitor), (True,)


job = fp.Job("unique-visitors", checkpoint=f"{out}/unique_visitors")
views = job.read(fp.Files(folder, format="json", schema="page STRING, visitor STRING", max_files_per_epoch=1))
visitors = fp.map_with_state(
    views,
    by=["page", "visitor"],  # a small state per visitor, not one that grows per page
    state="seen BOOLEAN",
    output="page STRING, visitor STRING",
)(first_time)
# Two tables, one decision: no reader ever finds more visitors than views.
job.write(views, fp.SQLite(f"{out}/unique_visitors.db", table="views"))
job.write(visitors, fp.SQLite(f"{out}/unique_visitors.db", table="visitors"))

if __name__ == "__main__":
    job.run(until="available")
