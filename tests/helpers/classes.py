"""One archive of Spark's classes for the JVMs that tests start: with it a small job takes half the processor time. And
the first compiler alone: what the second one makes pays off in minutes, and these jobs run for seconds.

`make test` makes it when it is missing (`python tests/helpers/classes.py`); without it tests only take longer. A JVM
whose class path is another one ignores it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fencepost_proof.kill.scene import SceneFailed, archive_file, class_archive
from fencepost_proof.workloads.files import FilesWorkload

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Only the driver's JVM reads this variable, and every other place to set an option overrides it."""
NAME = "files"
"""Kill tests use it, too."""


def options(folder: Path) -> dict[str, str]:
    """The variable for the driver's JVM, if there is an archive."""
    archive = archive_file(folder, NAME)
    found = f"-XX:TieredStopAtLevel=1 -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return {SUBMIT_OPTIONS: found} if archive.exists() else {}


def main() -> None:
    """Make it, unless it is there."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        class_archive(folder, NAME, FilesWorkload, "jvm")
    except (OSError, SceneFailed) as error:
        sys.stderr.write(f"Spark's class archive was not made, so the tests take longer: {error}\n")


if __name__ == "__main__":
    main()
