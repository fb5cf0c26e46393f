"""One real Redis server as a child process, from Debian's packages.

Never loses what it acknowledged: it writes each command to its log, and syncs it, before it answers.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencepost_proof.rig.debs import REDIS, unpack
from fencepost_proof.rig.process import HOST
from fencepost_proof.rig.server import Server, run


@dataclass
class Redis(Server):
    """A server without a password. Redis's own defaults (`appendonly no`) would lose every row in a kill."""

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://{HOST}:{self.port}/0"

    def cli(self, *words: str) -> str:
        """What `redis-cli` says to a command."""
        tools = unpack(REDIS)
        command = [*tools.command("redis-cli"), "-h", HOST, "-p", str(self.port), *words]
        return run(command, environment=tools.environment).rstrip("\n")

    def _initialise(self, data: Path) -> None:
        """Redis makes what it needs."""

    def _command(self) -> Sequence[str | Path]:
        server = self.folder.absolute() / "redis-server"
        with contextlib.suppress(FileExistsError):
            server.symlink_to(program())
        chosen = SETTINGS | {"bind": HOST, "port": str(self.port), "dir": str(self.data)} | dict(self.settings)
        return [server, *(word for key, value in chosen.items() for word in (f"--{key}", value))]

    def _environment(self) -> Mapping[str, str]:
        return unpack(REDIS).environment

    def _answers(self) -> bool:
        """It listens before it has read its log, and says so."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False


SETTINGS = {"appendonly": "yes", "appendfsync": "always", "save": ""}


def program() -> Path:
    """In Debian's tools the server is the checker of its files: which of both it is, it sees by its name."""
    tools = unpack(REDIS)
    return tools.program("redis-server" if tools.root == Path("/") else "redis-check-rdb")
