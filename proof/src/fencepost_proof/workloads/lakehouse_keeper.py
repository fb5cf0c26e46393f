"""Maintains the tables of the lakehouse workload all the time, as a scheduler would: compacts, vacuums, expires.

    python lakehouse_keeper.py '{"delta": [[URL, OPTIONS], …], "iceberg": {"catalog": {…}, "table": "…"}}'

Until SIGTERM; then it prints how often each worked. It imports nothing of fencepost: it is somebody else.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any


def keep_delta(url: str, options: dict[str, str], done: Counter[str]) -> None:
    """Compact, checkpoint the log, and delete what nobody has named for an hour."""
    from deltalake import DeltaTable  # noqa: PLC0415 - in a process of its own

    table = DeltaTable(url, storage_options=options)
    table.optimize.compact()
    done["compacted"] += 1
    table.create_checkpoint()
    table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
    done["vacuumed"] += 1


def keep_iceberg(told: dict[str, Any], done: Counter[str]) -> None:
    """Expire all snapshots but the newest, and change a property."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - in a process of its own

    table = load_catalog(**{"name": "default", **told["catalog"]}).load_table(told["table"])
    table.maintenance.expire_snapshots().older_than(datetime.now(tz=UTC)).commit()
    done["expired"] += 1
    with table.transaction() as change:
        change.set_properties({"maintained": str(done["expired"])})


def main(arguments: list[str]) -> int:
    """The command line."""
    told = json.loads(arguments[0])
    done: Counter[str] = Counter()
    going = True

    def stop(*_: object) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    while going:
        for url, options in told["delta"]:
            attempt(lambda url=url, options=options: keep_delta(url, options, done), done)
        attempt(lambda: keep_iceberg(told["iceberg"], done), done)
        time.sleep(0.3)
    print(json.dumps(done))
    return 0


def attempt(work: Any, done: Counter[str]) -> None:
    """A table that is not there yet, a server that was killed, a conflict: the next round comes soon."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is, a scheduler tries again
        done[f"failed: {type(error).__name__}"] += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
