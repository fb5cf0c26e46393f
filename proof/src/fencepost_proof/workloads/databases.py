"""Files in; four databases and a folder of files out, with five DataFrames and one decision."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import psycopg

from fencepost_proof.checkers import recount
from fencepost_proof.rig.databases import Servers
from fencepost_proof.workloads.contract import MOMENT, ROWS_PER_EPOCH, SERVER, SLEEPER, TASK, Mortal
from fencepost_proof.workloads.files import KAFKA, LAKEHOUSE, FilesWorkload

LARGE = "an epoch that is written in several parts (killed in tests/connectors)"


@dataclass
class DatabasesWorkload(FilesWorkload):
    """A file is an epoch; a name of its own in every server."""

    servers_: Servers = field(kw_only=True)
    place: str = field(default_factory=lambda: f"k{uuid.uuid4().hex[:8]}", kw_only=True)

    job: ClassVar = "fencepost_proof.workloads.databases_job"
    attacks: ClassVar = (TASK, MOMENT, SERVER, SLEEPER)
    out_of_reach: ClassVar = {
        "cassandra.applying": LARGE,
        "kafka.*": KAFKA,
        "lake.*": LAKEHOUSE,
        "redis.chunk": LARGE,
        "sweep.abort": KAFKA,
        "sweep.orphans": KAFKA,
    }

    def __post_init__(self) -> None:
        """A schema, a database, a keyspace."""
        super().__post_init__()
        with psycopg.connect(self.servers_.postgres.dsn) as connection:
            connection.execute(f"CREATE SCHEMA {self.place}".encode())
        self.servers_.mariadb.client(f"CREATE DATABASE {self.place}; GRANT ALL ON {self.place}.* TO test@'127.0.0.1';")
        self.servers_.cassandra.run(
            f"CREATE KEYSPACE {self.place} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )

    @property
    def servers(self) -> Mapping[str, Mortal]:
        """Each of them may die."""
        servers = self.servers_
        return {
            "PostgreSQL": servers.postgres,
            "MariaDB": servers.mariadb,
            "Redis": servers.redis,
            "Cassandra": servers.cassandra,
        }

    def job_arguments(self) -> list[str]:
        """Where the servers are."""
        servers = self.servers_
        where = {
            "postgres": servers.postgres.dsn,
            "mariadb": servers.mariadb.port,
            "redis": servers.redis.url,
            "cassandra": servers.cassandra.port,
            "place": self.place,
        }
        return [word for key, value in where.items() for word in (f"--{key}", str(value))]

    @property
    def places(self) -> tuple[str, ...]:
        """For the checker."""
        servers = self.servers_
        client, environment = servers.mariadb.client_command
        mariadb = {"client": client, "environment": environment, "table": f"{self.place}.totals"}
        return (
            f"rows:postgres:{servers.postgres.dsn} table={self.place}.rows",
            f"totals:mariadb:{json.dumps(mariadb)}",
            f"counts:redis:{servers.redis.port}/{self.place}:",
            f"newest:cassandra:{servers.cassandra.port}/{self.place}.newest",
            f"evens:files:{self.folder / 'evens'}",
        )

    def checker_arguments(self, *places: str) -> list[str]:
        """The input and all targets."""
        return [str(self.input), *(places or self.places)]

    @contextmanager
    def watched(self) -> Iterator[dict[str, dict[str, int]]]:
        """A reader who does not wait for the end; what it saw is there when the block is over."""
        command = [sys.executable, "-I", recount.__file__, "--watch", str(ROWS_PER_EPOCH), *self.places]
        found: dict[str, dict[str, int]] = {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
            try:
                yield found
            finally:
                reader.terminate()
                out, _ = reader.communicate(timeout=60)
                found |= json.loads(out)
