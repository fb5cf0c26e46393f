"""Files in; Delta, Iceberg, DuckDB and PostgreSQL out, with five DataFrames and one decision, beside maintenance."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psycopg

from fencepost_proof.checkers import recount
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.s3 import S3
from fencepost_proof.workloads import lakehouse_keeper
from fencepost_proof.workloads.contract import MOMENT, ROWS_PER_EPOCH, SERVER, SLEEPER, TASK, Mortal
from fencepost_proof.workloads.files import DATABASES, KAFKA, FilesWorkload
from fencepost_proof.workloads.lakehouse_job import catalog_of, options_of


@dataclass(frozen=True)
class LakeServers:
    """A catalog's database, which is a target too, and an object store."""

    postgres: Postgres
    s3: S3

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[LakeServers]:
        """Both, for as long as the block."""
        with ExitStack() as stack:
            yield cls(stack.enter_context(Postgres(folder / "postgres")), stack.enter_context(S3(folder / "s3")))


@dataclass
class LakehouseWorkload(FilesWorkload):
    """A file is an epoch; a schema and a bucket of its own in the servers."""

    servers_: LakeServers = field(kw_only=True)
    place: str = field(default_factory=lambda: f"k{uuid.uuid4().hex[:8]}", kw_only=True)

    job: ClassVar = "fencepost_proof.workloads.lakehouse_job"
    attacks: ClassVar = (TASK, MOMENT, SERVER, SLEEPER)
    beds: ClassVar = ("precommit.after", "complete.before")
    """Not from the vote to the commit: there a driver, even asleep, has the DuckDB file, and locks out the next one."""
    out_of_reach: ClassVar = {
        "cassandra.*": DATABASES,
        "kafka.*": KAFKA,
        "publish.*": "a sink of files",
        "redis.*": DATABASES,
        "staged.*": DATABASES,
        "sweep.abort": KAFKA,
        "sweep.orphans": KAFKA,
    }

    def __post_init__(self) -> None:
        """A schema and a bucket."""
        super().__post_init__()
        with psycopg.connect(self.servers_.postgres.dsn) as connection:
            connection.execute(f"CREATE SCHEMA {self.place}".encode())
        self.servers_.s3.make_bucket(self.place)

    @property
    def servers(self) -> Mapping[str, Mortal]:
        """Each of them may die."""
        return {"PostgreSQL": self.servers_.postgres, "S3": self.servers_.s3}

    def job_arguments(self) -> list[str]:
        """Where the servers are."""
        servers = self.servers_
        where = {"postgres": servers.postgres.dsn, "place": self.place, "endpoint": servers.s3.endpoint}
        return [word for key, value in where.items() for word in (f"--{key}", str(value))]

    @property
    def _iceberg(self) -> dict[str, object]:
        catalog = catalog_of(self.servers_.postgres.dsn, str(self.folder), self.place)
        return {"catalog": catalog, "table": f"{self.place}.evens"}

    @property
    def places(self) -> tuple[str, ...]:
        """For the checker."""
        return (
            f"rows:delta:{self.servers_.s3.server.data / self.place / 'rows'}",
            f"totals:delta:{self.folder / 'totals'}",
            f"evens:iceberg:{json.dumps(self._iceberg)}",
            f"newest:duckdb:{self.folder / 'newest.duckdb'}#newest",
            f"rows:postgres:{self.servers_.postgres.dsn} table={self.place}.rows",
        )

    def checker_arguments(self, *places: str) -> list[str]:
        """The input and all targets."""
        return [str(self.input), *(places or self.places)]

    @contextmanager
    def watched(self) -> Iterator[dict[str, dict[str, int]]]:
        """A reader who does not wait for the end, and somebody who maintains the tables all the while."""
        watch = [sys.executable, "-I", recount.__file__, "--watch", str(ROWS_PER_EPOCH), *self.places]
        url = f"s3://{self.place}/rows"
        tables = {
            "delta": [[url, options_of(self.servers_.s3.endpoint)], [str(self.folder / "totals"), {}]],
            "iceberg": self._iceberg,
        }
        keep = [sys.executable, lakehouse_keeper.__file__, json.dumps(tables)]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        found: dict[str, dict[str, int]] = {}
        with subprocess.Popen(watch, **quiet) as reader, subprocess.Popen(keep, **quiet) as keeper:  # type: ignore[call-overload]
            try:
                yield found
            finally:
                reader.terminate()
                keeper.terminate()
                found |= json.loads(reader.communicate(timeout=60)[0])
                print("maintenance:", keeper.communicate(timeout=60)[0].decode().strip())
