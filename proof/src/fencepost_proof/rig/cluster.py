"""A Spark cluster of two workers, HDFS and S3, on free ports of this machine, until Ctrl-C.

python -m fencepost_proof.rig.cluster
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.process import in_foreground, stay
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.standalone import Standalone

BUCKET = "checkpoints"


@dataclass(frozen=True)
class Cluster:
    """Where jobs run, and the stores that both their drivers and their executors reach."""

    standalone: Standalone
    hdfs: Hdfs
    s3: S3

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Cluster]:
        """All of it, for as long as the block."""
        with ExitStack() as stack:
            yield cls(
                stack.enter_context(Standalone(folder / "standalone")),
                stack.enter_context(Hdfs(folder / "hdfs")),
                stack.enter_context(S3(folder / "s3")),
            )

    @property
    def settings(self) -> dict[str, str]:
        """What a Spark session is given to use all three."""
        jars = ",".join(map(str, self.s3.jars))
        return {**self.standalone.settings, **self.hdfs.settings, **self.s3.settings, "spark.jars": jars}


def serve(folder: Path) -> None:
    """Start it and say where it is."""
    print("Starting a Spark cluster, HDFS and S3 (the first time they are downloaded) ...", file=sys.stderr)
    with Cluster.started(folder) as cluster:
        cluster.s3.make_bucket(BUCKET)
        spark = folder / "spark.conf"
        spark.write_text("".join(f"{key} {value}\n" for key, value in cluster.settings.items()))
        print(f"export MASTER={cluster.standalone.url}    # {cluster.standalone.master.web}")
        print(f"export HDFS={cluster.hdfs.url}    # {cluster.hdfs.web}")
        print(f"export S3={cluster.s3.url(BUCKET)}")
        print("".join(f"export {key}={value}\n" for key, value in cluster.s3.environment.items()), end="")
        print(f"export SPARK_SETTINGS={spark}    # spark-submit --properties-file $SPARK_SETTINGS", flush=True)
        stay()


if __name__ == "__main__":
    sys.exit(in_foreground(serve))
