"""Copies one file from place to place, durably, comparing its sums on the way."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fencepost.checkpoints.parts import Part, Problem, examine
from fencepost.checkpoints.sums import Measured
from fencepost.ledger import Place, RemotePath


def copy_part(root: Place, part: Part, to: Place) -> tuple[Measured | None, Problem | None]:
    """Copy a part of a checkpoint to a file that is not there yet; one that is not whole is not sent far.

    On a local disk its folder must be there, and its name becomes durable with it.
    """
    if not isinstance(to, RemotePath):
        with open(to, "xb") as out:
            seen = examine(root, part, out)
            out.flush()
            os.fsync(out.fileno())
        return seen
    with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
        here = Path(folder) / "part"
        with here.open("xb") as out:
            measured, problem = examine(root, part, out)
        if problem is None:
            to.send(here)
    return measured, problem
