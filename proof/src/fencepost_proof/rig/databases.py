"""One real server of each kind, on free ports of this machine, until Ctrl-C.

python -m fencepost_proof.rig.databases
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.process import in_foreground, stay
from fencepost_proof.rig.redis import Redis


@dataclass(frozen=True)
class Servers:
    """One of each."""

    postgres: Postgres
    mariadb: MariaDB
    redis: Redis
    cassandra: Cassandra

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Servers]:
        """All of them, for as long as the block."""
        with ExitStack() as stack:
            yield cls(
                stack.enter_context(Postgres(folder / "postgres")),
                stack.enter_context(MariaDB(folder / "mariadb")),
                stack.enter_context(Redis(folder / "redis")),
                stack.enter_context(Cassandra(folder / "cassandra")),
            )


def serve(folder: Path) -> None:
    """Start them and say where they are."""
    print("Starting PostgreSQL, MariaDB, Redis and Cassandra (the first time they are downloaded) ...", file=sys.stderr)
    with Servers.started(folder) as servers:
        servers.cassandra.run(
            "CREATE KEYSPACE test WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        print(f"export POSTGRES='{servers.postgres.dsn}'")
        print(f"export MYSQL_PORT={servers.mariadb.port}    # database test, user test, password test")
        print(f"export REDIS={servers.redis.url}")
        print(f"export CASSANDRA_PORT={servers.cassandra.port}    # keyspace test", flush=True)
        stay()


if __name__ == "__main__":
    sys.exit(in_foreground(serve))
