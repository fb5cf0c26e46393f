"""The job of the kill tests with its checkpoint and its targets on disks whose power is cut.

The input lies elsewhere: what a power cut takes from a source that was not synced, nobody downstream can bring back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fencepost.store.local import make_folder
from fencepost_proof.workloads.contract import MOMENT
from fencepost_proof.workloads.files import FilesWorkload


@dataclass
class PowerWorkload(FilesWorkload):
    """Files in; totals and every row once out. The folder itself holds the input and the log, and is never cut."""

    checkpoint_disk: Path = field(kw_only=True)
    target_disk: Path = field(kw_only=True)
    plain: bool = field(default=False, kw_only=True)
    """The sabotaged twin: the same plans on plain Spark."""

    job: ClassVar = "fencepost_proof.workloads.power_job"
    attacks: ClassVar = (MOMENT,)

    @property
    def checkpoint(self) -> Path:
        """Of the job."""
        return self.checkpoint_disk / self.folder.name / "checkpoint"

    @property
    def target(self) -> Path:
        """Where the targets lie."""
        return self.target_disk / self.folder.name / "target"

    def __post_init__(self) -> None:
        """The folders are there, durably: somebody made them long ago."""
        super().__post_init__()
        make_folder(self.checkpoint)
        make_folder(self.target)

    def order(self, fault: str) -> str:
        """One run of the job, as it is told."""
        places = {"folder": self.folder, "checkpoint": self.checkpoint, "target": self.target}
        return json.dumps({"fault": fault} | {name: str(place) for name, place in places.items()})

    def job_arguments(self) -> list[str]:
        """Which job."""
        return ["--plain"] if self.plain else []

    def checker_arguments(self, *places: str) -> list[str]:
        """Both targets; those of plain Spark are tables."""
        rows = f"rows:sqlite:{self.target / 'rows.db'}" if self.plain else f"rows:files:{self.target / 'rows'}"
        return [str(self.input), *(places or (f"totals:sqlite:{self.target / 'totals.db'}", rows))]
