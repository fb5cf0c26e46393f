"""Tries out whether an object store lets one of two writers win who commit the same version of a table.

Delta commits with a PUT that must fail if the name is taken (`If-None-Match: *`). A store that ignores the condition
lets the second commit overwrite the first, whose rows are then lost. The trial can prove that, not the opposite.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError

from fencepost.connectors.delta.files import Folder
from fencepost.connectors.table.database import Silent

FOLDER = "_fencepost_trial"
"""Below the table's folder: whoever writes the table may write there, and no reader looks at names with `_`."""
RACES = 3
WRITERS = 4
_SCHEMA = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
_passed: set[str] = set()
"""Places that passed in this process."""


def failed(folder: Folder) -> str | None:
    """What two writers at once would do to each other, for people; None if nothing, as far as the trial shows."""
    if folder.local is not None or folder.place in _passed:
        return None
    for _ in range(RACES):
        if _race(folder) > 1:
            return "its object store lets two writers commit the same version: it ignores the condition of a PUT"
    _passed.add(folder.place)
    return None


def _race(folder: Folder) -> int:
    """How many of several writers were told that they have won."""
    path = f"{FOLDER}/{uuid.uuid4().hex}"
    uri, options = f"{folder.uri}/{path}", dict(folder.options)
    try:
        DeltaTable.create(uri, Schema.from_json(_SCHEMA), storage_options=options)
        tables = [DeltaTable(uri, storage_options=options) for _ in range(WRITERS)]
        start = threading.Barrier(WRITERS)
        with ThreadPoolExecutor(WRITERS) as pool:
            return sum(pool.map(lambda table: _wins(table, start), tables))
    except Exception as error:  # noqa: BLE001 - whatever the library raises quotes URLs
        raise Silent(f"its object store failed in a trial ({type(error).__name__})") from None
    finally:
        with suppress(Silent):
            folder.remove(path)


def _wins(table: DeltaTable, start: threading.Barrier) -> bool:
    once = CommitProperties(max_commit_retries=0)
    quiet = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    start.wait(20)
    try:
        table.create_write_transaction(
            [], "append", table.schema(), commit_properties=once, post_commithook_properties=quiet
        )
    except CommitFailedError:
        return False
    return True
