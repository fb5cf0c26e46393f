"""The class archive: the classes that Spark's JVM loads, kept as the JVM has them in memory, for a shorter start.

    a first start         the JVM lists the classes that it loads            <cache>/<key>.<process>.list
    a minute later,       a process of its own, with what the machine has
    or at the exit        to spare, makes the archive of them                <cache>/<key>.jsa
    every later start     the JVM maps the archive

The key names the Java, its options and every jar, and the JVM compares them again: what does not fit is not used. The
archive gets its name when it is whole and was tried. Only a convenience: the folder may be deleted at any time, and a
start never fails because of it.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CACHE: Final = "FENCEPOST_CACHE"
"""Names the folder; empty: there is none, and so no archive."""
LEAST_FREE: Final = 2 << 30
"""Bytes on the disk below which none is made; it takes about 200 MB."""
SETTLED_S: Final = 60.0
"""By then a job that runs has loaded what its epochs need."""
PATIENCE_S: Final = 3600.0
KEPT: Final = 4
"""Archives that stay, of those that were used last."""
COMPARED: Final = re.compile(r"-Xmx|-XX:[+-]Use(\w*GC|Compressed\w+)|-XX:ObjectAlignment|--add-")
"""Options that decide whether an archive fits. Not the others: a log or a port is the running job's own, -D may be a
secret."""
ABANDONED_S: Final = 86400.0
"""Older files of processes that were killed are removed; and what could not be made by then is tried again."""


def folder() -> Path | None:
    """Where archives are kept, if anywhere."""
    told = os.environ.get(CACHE)
    if told is not None:
        return Path(told).absolute() if told else None
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache).absolute() if cache else Path.home() / ".cache") / "fencepost"
    except RuntimeError:  # a user without a home
        return None


def key(java: Path, texts: Iterable[str], class_path: Iterable[str]) -> str:
    """A name for this Java with these options and jars: another version, size or time of a jar is another key."""
    names = [str(java), *texts]
    for entry in class_path:
        place = Path(entry.removesuffix("*"))
        inside = sorted(place.glob("*.jar")) if entry.endswith("*") else [place]
        names += [_mark(path) for path in (place, *inside)]
    names += [_mark(java.parent.parent / "release"), _mark(java)]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _mark(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path} -"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one class path on this machine, there or still to be made."""

    stem: Path
    java: Path

    @property
    def file(self) -> Path:
        """The archive itself."""
        return self.stem.with_suffix(".jsa")

    @property
    def list(self) -> Path:
        """What the JVM of this process lists."""
        return self.stem.with_suffix(f".{os.getpid()}.list")

    @property
    def classes(self) -> Path:
        """The list that the archive was made of, to make it again."""
        return self.stem.with_suffix(".classes")

    @property
    def unfit(self) -> Path:
        """There if no archive could be made of this class path; says why."""
        return self.stem.with_suffix(".unfit")

    @property
    def is_unfit(self) -> bool:
        """Did it fail lately? Not for good: a disk that was full may have room, a folder on the class path be empty."""
        try:
            return time.time() - self.unfit.stat().st_mtime < ABANDONED_S
        except FileNotFoundError:
            return False

    def option(self) -> str | None:
        """What the JVM is told: to use the archive, or to list its classes for one; None if the cache cannot be used.

        An archive that somebody else could have written is not used: it is code.
        """
        try:
            self.stem.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.is_unfit:
                return None
            if self.file.exists():
                found = self.file.lstat()
                if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
                    return None
                with suppress(OSError):  # in an image it may be read-only
                    os.utime(self.file)  # for those who sweep
                # Without the sums a damaged archive might be believed.
                return f"-XX:SharedArchiveFile={self.file} -XX:+VerifySharedSpaces"
            writable = os.access(self.stem.parent, os.W_OK) and shutil.disk_usage(self.stem.parent).free > LEAST_FREE
        except OSError:
            return None
        return f"-XX:DumpLoadedClassList={self.list}" if writable else None

    def discard(self) -> None:
        """It did not fit."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    def make_later(self, jvm: Any) -> None:
        """Make it when this process has run for a while, or at its end, whichever comes first."""
        class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
        arguments = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
        options = [one for one in map(str, arguments) if COMPARED.match(one)]
        process, once = os.getpid(), threading.Lock()

        def make() -> None:
            if os.getpid() == process and once.acquire(blocking=False):
                self.make(class_path, options)

        timer = threading.Timer(SETTLED_S, make)
        timer.daemon = True
        timer.start()
        atexit.register(make)

    def make(self, class_path: str, options: Sequence[str]) -> None:
        """Start the process that makes it; returns at once."""
        told = {"stem": str(self.stem), "java": str(self.java), "list": str(self.list)}
        with suppress(OSError, RuntimeError):  # the latter from an interpreter that is at its very end
            maker = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )  # fmt: skip
            assert maker.stdin is not None
            with maker.stdin:
                maker.stdin.write(json.dumps({**told, "class_path": class_path, "options": list(options)}).encode())
            maker.returncode = 0  # nobody waits for it


# --- the process that makes it


def main() -> None:
    """Make the archive that stdin describes, unless somebody else does. Killed at any point, it leaves no archive."""
    told = json.load(sys.stdin)
    archive = Archive(Path(told["stem"]), Path(told["java"]))
    _give_way()
    with archive.stem.with_suffix(".lock").open("wb") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not archive.file.exists() and not archive.is_unfit:
            _take_list(Path(told["list"]), archive.classes)
            _make(archive, told["class_path"], told["options"])
        _sweep(archive.stem.parent)
    with suppress(OSError):
        Path(told["list"]).unlink(missing_ok=True)


def _give_way() -> None:
    """Only what nobody else wants: the processor when it is idle, and memory until somebody needs it."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if os.getsid(0) == os.getpid():  # not of a session that others are in
        _weigh_little()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _weigh_little() -> None:
    """Where the kernel shares processors between sessions (autogroup), the rest counts only inside of one."""
    with suppress(OSError):
        for _ in range(10):
            try:
                Path("/proc/self/autogroup").write_text("19")
            except BlockingIOError:  # of all users' changes it takes one per tenth of a second
                time.sleep(0.05)
            else:
                return


def _take_list(listed: Path, classes: Path) -> None:
    """The JVM may be writing it still: without a line that is not whole."""
    with suppress(OSError):
        text = listed.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole:
            temp = classes.with_suffix(f".{os.getpid()}.tmp")
            temp.write_bytes(whole)
            temp.replace(classes)


def _make(archive: Archive, class_path: str, options: Sequence[str]) -> None:
    if not archive.classes.exists() or shutil.disk_usage(archive.stem.parent).free < LEAST_FREE:
        return
    temp = archive.stem.with_suffix(f".{os.getpid()}.tmp")
    ours, theirs = f"-XX:SharedArchiveFile={temp}", ["-cp", class_path]
    try:
        made = _run(
            [archive.java, "-Xshare:dump", "-Xmx1g", f"-XX:SharedClassListFile={archive.classes}", ours, *theirs]
        )
        # As the next start will have it, but not content with less.
        tried = made if made.returncode else _run([archive.java, *options, "-Xshare:on", ours, *theirs, "-version"])
        if tried.returncode < 0 or shutil.disk_usage(archive.stem.parent).free < LEAST_FREE:
            return  # killed: somebody needed the memory; or the disk
        if tried.returncode:
            archive.unfit.write_bytes(tried.stdout[-4000:])
            return
        with temp.open("rb") as file:
            os.fsync(file.fileno())
        temp.chmod(0o400)
        temp.replace(archive.file)
        archive.unfit.unlink(missing_ok=True)
    finally:
        temp.unlink(missing_ok=True)


def _run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[bytes]:
    # Not the user's JAVA_TOOL_OPTIONS: they are in `options`, where they belong to the driver.
    plain = {name: value for name, value in os.environ.items() if not name.endswith("JAVA_OPTIONS")}
    plain.pop("JAVA_TOOL_OPTIONS", None)
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=plain,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def _sweep(cache: Path) -> None:
    """Remove what was not used for longest, and what killed processes left."""
    with suppress(OSError):
        archives = sorted(cache.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in archives[KEPT:]:
            for suffix in (".jsa", ".classes", ".lock"):
                old.with_suffix(suffix).unlink(missing_ok=True)
        for left in (*cache.glob("*.tmp"), *cache.glob("*.list"), *cache.glob("*.unfit")):
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
