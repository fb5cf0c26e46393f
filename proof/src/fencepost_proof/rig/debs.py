"""Servers from Debian's packages, downloaded and unpacked into the user's cache, or those installed on this machine.

Never installs anything: no root, no service that starts, nothing of the system changes. Pinned by name only, as each
point release of Debian replaces the one before; which versions came is written beside them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencepost_proof.rig.jars import RigFailed, cache

PATIENCE_S = 600


@dataclass(frozen=True)
class DebSet:
    """Packages that belong together. All they need has to be named, but for what every Debian has."""

    name: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    """With these on the PATH, what is installed may stand in."""
    suite: str = ""
    """Of another Debian than this machine's: then all they need comes with them, down to the C library."""

    @property
    def folder(self) -> Path:
        """Where the set is kept: other packages, another folder."""
        asked = hashlib.sha256(" ".join((*self.packages, self.suite)).encode()).hexdigest()[:12]
        return cache().with_name("debs") / f"{self.name}-{asked}"


@dataclass(frozen=True)
class Unpacked:
    """A tree of folders as a package would install them."""

    root: Path

    def command(self, name: str) -> list[str]:
        """How to run a program of the set: with the loader of its own C library, if it brought one."""
        loader = [str(path) for path in self.root.glob("usr/lib64/ld-linux-*.so.*") if self.root != Path("/")]
        return [*loader, *(["--library-path", self._libraries] if loader else []), str(self.program(name))]

    def program(self, name: str) -> Path:
        """Where a program of the set is."""
        path = os.pathsep.join(str(self.root / folder) for folder in ("usr/sbin", "usr/bin"))
        found = shutil.which(name, path=path) or (shutil.which(name) if self.root == Path("/") else None)
        if found is None:
            raise RigFailed(f"There is no {name} in {self.root}: remove that folder and start again.")
        return Path(found)

    @property
    def environment(self) -> dict[str, str]:
        """What its programs need to find their libraries."""
        return {"LD_LIBRARY_PATH": self._libraries} if self.root != Path("/") else {}

    @property
    def _libraries(self) -> str:
        return os.pathsep.join(map(str, sorted(self.root.glob("usr/lib/*-linux-gnu"))))


REDIS = DebSet("redis", ("redis-tools", "libatomic1", "libjemalloc2", "liblzf1"), ("redis-server", "redis-cli"))
"""`redis-tools` has the server's program, without a service that apt would start."""

MARIADB = DebSet(
    "mariadb",
    (
        *("mariadb-server-core", "libaio1", "libnuma1", "liburing2"),
        *("mariadb-client-core", "libbsd0", "libedit2", "libmariadb3", "libmd0", "libncurses6"),
    ),
    ("mariadbd", "mariadb-install-db", "mariadb"),
)

PGBOUNCER = DebSet("pgbouncer", ("pgbouncer", "libc-ares2", "libevent-2.1-7"), ("pgbouncer",))

PROMETHEUS = DebSet("prometheus", ("prometheus",), ("prometheus", "promtool"))

MYSQL = DebSet("mysql", ("mysql-server-core",), ("mysqld",), suite="sid")
"""No stable Debian has it, and what sid has changes by the day."""


def unpack(debs: DebSet) -> Unpacked:
    """The set's files, downloaded if they are not here yet. Two processes at once: both load, the first one wins."""
    if not debs.folder.is_dir():
        tools = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
        installed = all(map(shutil.which, debs.programs))
        try:
            if tools:
                raise RigFailed(f"There is no {' and no '.join(tools)} to fetch {debs.name} with.")
            download(debs)
        except RigFailed as error:
            if installed:
                return Unpacked(Path("/"))
            raise RigFailed(f"{error} Or install {' and '.join(debs.programs)} so that they are on the PATH.") from None
    return Unpacked(debs.folder)


def download(debs: DebSet) -> None:
    """Fetch and unpack beside its place, and move it there when whole."""
    debs.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{debs.name}-", dir=debs.folder.parent) as place:
        temp = Path(place)
        for folder in ("lists/partial", "archives/partial"):
            (temp / folder).mkdir(parents=True)
        if debs.suite:
            get_all_of(debs, temp)
        else:
            get(debs, temp)
        whole = temp / "root"
        packages = sorted(temp.glob("**/*.deb"))
        for package in packages:
            run(["dpkg", "-x", str(package), str(whole)], temp)
        (whole / "versions.txt").write_text("".join(f"{package.stem}\n" for package in packages))
        try:
            whole.rename(debs.folder)
        except OSError:
            if not debs.folder.is_dir():
                raise


def get(debs: DebSet, temp: Path) -> None:
    """Download just these, of this machine's Debian."""
    try:
        apt({}, "download", *debs.packages, folder=temp)
    except RigFailed:  # no lists of packages here, or old ones: fetch some, for us alone
        private = {"Dir::State::lists": temp / "lists", "Dir::Cache": temp}
        apt(private, "update", folder=temp)
        apt(private, "download", *debs.packages, folder=temp)


def get_all_of(debs: DebSet, temp: Path) -> None:
    """Download these and all they need: as if for a machine that has nothing, of which nothing is installed."""
    (temp / "status").touch()
    (temp / "sources.list").write_text(f"deb [signed-by={KEYS}] http://deb.debian.org/debian {debs.suite} main\n")
    private: dict[str, str | Path] = {
        "Dir::State": temp,
        "Dir::State::status": temp / "status",
        "Dir::Cache": temp,
        "Dir::Etc::sourcelist": temp / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Debug::NoLocking": "1",
    }
    apt(private, "update", folder=temp)
    apt(private, "install", "--yes", "--download-only", "--no-install-recommends", *debs.packages, folder=temp)


KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def apt(settings: Mapping[str, str | Path], *words: str, folder: Path) -> None:
    """Run apt as who started it, quietly, and with these settings."""
    chosen = {"APT::Sandbox::User": "root", **settings}
    options = [word for key, value in chosen.items() for word in ("-o", f"{key}={value}")]
    run(["apt-get", "-qq", *options, *words], folder)


def run(command: Sequence[str], folder: Path) -> None:
    """Run one of Debian's tools."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder)
    except subprocess.TimeoutExpired:
        raise RigFailed(f"{command[0]} took more than {PATIENCE_S} s: see that the network is up.") from None
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise RigFailed(
            f"{command[0]} failed: see that the network reaches Debian's packages and start again. It said:\n{tail}\n"
        )
