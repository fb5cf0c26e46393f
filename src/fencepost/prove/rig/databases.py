"""One real server of each kind, on free ports of this machine, until Ctrl-C.

python -m fencepost.prove.rig.databases
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fencepost.prove.rig.cassandra import Cassandra
from fencepost.prove.rig.jars import RigFailed
from fencepost.prove.rig.mariadb import MariaDB
from fencepost.prove.rig.postgres import Postgres
from fencepost.prove.rig.redis import Redis


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


def main() -> int:
    """Start them and say where they are."""
    print("Starting PostgreSQL, MariaDB, Redis and Cassandra (the first time they are downloaded) ...", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder, Servers.started(Path(folder)) as servers:
            servers.cassandra.run(
                "CREATE KEYSPACE test WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            print(f"export POSTGRES='{servers.postgres.dsn}'")
            print(f"export MYSQL_PORT={servers.mariadb.port}    # database test, user test, password test")
            print(f"export REDIS={servers.redis.url}")
            print(f"export CASSANDRA_PORT={servers.cassandra.port}    # keyspace test", flush=True)
            print("Ctrl-C ends them, and what they hold.", file=sys.stderr)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except RigFailed as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
