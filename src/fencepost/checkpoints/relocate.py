"""Makes a copied checkpoint its own: Spark writes whole paths into the metadata of transformWithState's operators.

    state/<operator>/_metadata/v2/<epoch>    "stateSchemaFilePaths":["file:/old/place/state/0/_stateSchema/default/0_…"]

Left alone, the copy works until the folder it came from is deleted, and then does not start.
"""

from __future__ import annotations

import json
from pathlib import Path

from fencepost.checkpoints.state_files import schema_paths
from fencepost.ledger import LocalStore


def relocate(root: Path, place: Path | None = None) -> list[str]:
    """Make every such path point into `root`, or where it is going to be; return the files that were changed."""
    store, changed = LocalStore(root), []
    here = Path(root).absolute()
    for file in sorted(here.glob("state/*/_metadata/v2/[0-9]*")):
        text = file.read_text()
        name = file.relative_to(here).as_posix()
        for path in schema_paths(file):
            inside = "/".join(path.split("/")[-5:])  # state/<operator>/_stateSchema/<store>/<file>
            text = text.replace(
                json.dumps(path, ensure_ascii=False), json.dumps(f"file:{place or here}/{inside}", ensure_ascii=False)
            )
        if text != file.read_text():
            store.delete(f"{Path(name).parent.as_posix()}/.{file.name}.crc")  # its stale Hadoop sum goes first
            store.replace(name, text.encode())
            changed.append(name)
    return changed
