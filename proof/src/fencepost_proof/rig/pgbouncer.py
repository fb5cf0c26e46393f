"""A pooler before a PostgreSQL server, as a child process, from Debian's packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fencepost_proof.rig.debs import PGBOUNCER, unpack
from fencepost_proof.rig.postgres import Postgres, not_as_root
from fencepost_proof.rig.process import HOST
from fencepost_proof.rig.server import Server


@dataclass
class PgBouncer(Server):
    """Trusts everybody on loopback; `pool_mode` and others in `settings`."""

    server: Postgres = field(kw_only=True)

    @property
    def dsn(self) -> str:
        """Where clients connect, as words."""
        return f"host={HOST} port={self.port} user=test dbname=test"

    def _initialise(self, data: Path) -> None:
        """It keeps nothing."""

    def _command(self) -> Sequence[str | Path]:
        chosen = {"listen_addr": HOST, "listen_port": str(self.port), "unix_socket_dir": "", "auth_type": "any"}
        lines = [f"{key} = {value}" for key, value in (chosen | dict(self.settings)).items()]
        file = self.data / "pgbouncer.ini"
        file.write_text("\n".join(["[databases]", f"test = {self.server.dsn}", "[pgbouncer]", *lines, ""]))
        return [*not_as_root(), *unpack(PGBOUNCER).command("pgbouncer"), file]

    def _environment(self) -> Mapping[str, str]:
        return unpack(PGBOUNCER).environment
