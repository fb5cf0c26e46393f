"""Makes a copied checkpoint its own: Spark writes whole paths into the metadata of transformWithState's operators.

    state/<operator>/_metadata/v2/<epoch>    "stateSchemaFilePaths":["file:/old/place/state/0/_stateSchema/default/0_…"]

Left alone, the copy works until the folder it came from is deleted, and then does not start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from fencepost.checkpoints.state_files import schema_paths
from fencepost.ledger import Place, RemotePath, store_at, way


def relocate(root: Place, place: Place | None = None) -> list[str]:
    """Make every such path point into `root`, or where it is going to be; return the files that were changed."""
    store, changed = store_at(root), []
    here = root.absolute()
    there = place or here
    start = str(there) if isinstance(there, RemotePath) else f"file:{there}"
    found: Iterator[Place] = here.glob("state/*/_metadata/v2/[0-9]*")
    for file in sorted(found, key=str):
        text = file.read_text()
        name = way(file, here)
        for path in schema_paths(file):
            inside = "/".join(path.split("/")[-5:])  # state/<operator>/_stateSchema/<store>/<file>
            text = text.replace(
                json.dumps(path, ensure_ascii=False), json.dumps(f"{start}/{inside}", ensure_ascii=False)
            )
        if text != file.read_text():
            store.delete(f"{PurePosixPath(name).parent}/.{file.name}.crc")  # its stale Hadoop sum goes first
            store.replace(name, text.encode())
            changed.append(name)
    return changed
