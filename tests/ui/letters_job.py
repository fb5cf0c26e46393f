"""A job with dead letters, whose file is named to `fencepost ui`: python letters_job.py runs it in its own folder."""

from __future__ import annotations

from pathlib import Path

import fencepost as fp

here = Path(__file__).parent
job = fp.Job("orders", checkpoint=here / "checkpoint")
dead = fp.SQLite(here / "letters.db", table="letters", name="dead")


def to_order(line):  # type: ignore[no-untyped-def]  # as users write it
    return (int(line.value),)


lines = job.read(fp.Files(str(here / "in"), format="text"))
orders = job.map(lines, to_order, output="id BIGINT", on_bad_record="dead_letter", dead_letters=dead)
job.write(orders, fp.SQLite(here / "out.db", table="orders", name="orders"))
if __name__ == "__main__":
    job.run(until="available")
