"""One real MariaDB or MySQL server as a child process, from Debian's packages.

Never reads this machine's own settings for either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pymysql

from fencepost_proof.rig.debs import MARIADB, MYSQL, Unpacked, unpack
from fencepost_proof.rig.process import HOST
from fencepost_proof.rig.server import Server, run

PASSWORD = "test"  # noqa: S105 - everybody's, on loopback, for as long as a test runs


@dataclass
class MariaDB(Server):
    """A server with a database `test`, its user `test` (password "test") and the user `root` without a password.

    `test` may do all within `test` and nothing outside, as in a real installation: what needs more is tested as root.
    """

    tls: bool = field(default=False, kw_only=True)
    """Whether it offers TLS, with a certificate of its own: `certificate`."""

    @property
    def certificate(self) -> Path:
        """What a client that checks the server takes as its root."""
        assert self.tls, "a server without TLS"
        return self.data / "server.crt"

    def client(self, sql: str) -> str:
        """What `mariadb` answers to statements as root in `test`: lines of values with tabs between."""
        command, environment = self.client_command
        return run(command, environment=environment, stdin=sql)

    @property
    def client_command(self) -> tuple[list[str], dict[str, str]]:
        """The server's own client, to be fed with statements, and its environment."""
        tools = unpack(MARIADB)
        server = [f"--host={HOST}", f"--port={self.port}", "--protocol=tcp", "--user=root", "test"]
        plugins = [f"--plugin-dir={path}" for path in tools.root.glob("usr/lib/*/libmariadb3/plugin")]
        command = [*tools.command("mariadb"), "--no-defaults", *plugins, "--batch", "--skip-column-names", *server]
        return [str(word) for word in command], dict(tools.environment)

    def _initialise(self, data: Path) -> None:
        self._install(data)
        (data / "users.sql").write_text(USERS)
        if self.tls:
            from fencepost_proof.rig.certificate import write_certificate  # noqa: PLC0415 - few servers need it

            write_certificate(data)

    def _install(self, data: Path) -> None:
        """Have its own tables made."""
        tools = unpack(MARIADB)
        options = [f"--basedir={tools.root / 'usr'}", f"--datadir={data}", "--auth-root-authentication-method=normal"]
        options += ["--skip-test-db", "--skip-name-resolve", *as_root()]
        run([*tools.command("mariadb-install-db"), "--no-defaults", *options], environment=tools.environment)

    def _command(self) -> Sequence[str | Path]:
        return self._serve(unpack(MARIADB), "mariadbd", {})

    def _serve(self, tools: Unpacked, program: str, more: Mapping[str, str]) -> list[str]:
        """The command of either server."""
        settings = SETTINGS | {
            **more,
            "basedir": str(tools.root / "usr"),
            "lc-messages-dir": str(tools.root / "usr/share/mysql"),
            "plugin-dir": str(tools.root / "usr/lib/mysql/plugin"),
            "datadir": str(self.data),
            "socket": "mysqld.sock",  # in its data: a whole path may be too long for one
            "pid-file": "mysqld.pid",
            "init-file": str(self.data / "users.sql"),
            "bind-address": HOST,
            "port": str(self.port),
        }
        if self.tls:
            settings |= {"ssl-cert": str(self.certificate), "ssl-key": str(self.data / "server.key")}
        settings |= self.settings
        options = [f"--{key}={value}" for key, value in settings.items()]
        return [*tools.command(program), "--no-defaults", *options, *as_root()]

    def _environment(self) -> Mapping[str, str]:
        return unpack(MARIADB).environment

    def _answers(self) -> bool:
        try:
            pymysql.connect(host=HOST, port=self.port, user="test", password=PASSWORD, connect_timeout=2).close()
        except pymysql.err.OperationalError:
            return False
        return True


@dataclass
class MySQL(MariaDB):
    """The same with MySQL, whose transactions of two phases follow other rules. The newest there is, so it changes."""

    def _install(self, data: Path) -> None:
        tools = unpack(MYSQL)
        options = [f"--basedir={tools.root / 'usr'}", f"--lc-messages-dir={tools.root / 'usr/share/mysql'}"]
        options += [f"--datadir={data}", "--initialize-insecure", *as_root()]
        run([*tools.command("mysqld"), "--no-defaults", *options])

    def _command(self) -> Sequence[str | Path]:
        return self._serve(unpack(MYSQL), "mysqld", {"secure-file-priv": "NULL", "mysqlx": "OFF"})

    def _environment(self) -> Mapping[str, str]:
        return {}


SETTINGS = {
    "innodb-buffer-pool-size": "64M",
    "innodb-flush-log-at-trx-commit": "1",
    "local-infile": "1",
    "performance-schema": "OFF",
    "skip-name-resolve": "ON",
    "character-set-server": "utf8mb4",
}

USERS = """\
CREATE DATABASE IF NOT EXISTS test;
CREATE USER IF NOT EXISTS root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS test@'127.0.0.1' IDENTIFIED BY 'test';
GRANT ALL ON test.* TO test@'127.0.0.1';
"""
"""Said at each start, as there is no earlier moment for it that all versions know."""


def as_root() -> list[str]:
    """MariaDB runs as root only if told so."""
    return ["--user=root"] if os.geteuid() == 0 else []
