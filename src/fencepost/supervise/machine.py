"""What the machine has to give: memory for another driver, and priority to the driver that works.

Reads /proc and the control groups. What they do not say is not guessed: then nothing is refused.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
GROUPS: Final = Path("/sys/fs/cgroup")
NICE: Final = 10
"""How much less a standby counts: about a tenth of a core, as long as others want all of them."""
EXPENDABLE: Final = 500
"""How much sooner the kernel ends a standby when memory runs out; of 1000."""


def free_memory(proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Bytes that new processes may use without taking them from others: of the machine, and of our container."""
    found = []
    with suppress(OSError, ValueError, KeyError):
        found.append(_table(proc / "meminfo")["MemAvailable:"] * 1024)
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, kind, path = line.split(":", 2)
            if kind == "":
                names = ("memory.max", "memory.current", "inactive_file")
                found += _left(groups, path, *names)
            elif "memory" in kind.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                found += _left(groups / "memory", path, *names)
    return min(found, default=None)


def _left(root: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """What each group from ours up to the root leaves; inside a container only some of the path is there."""
    folder = root / path.lstrip("/")
    for group in (folder, *folder.parents):
        with suppress(OSError, ValueError, KeyError):  # no limit is the word "max", or no file
            most = int((group / limit).read_text())
            yield most - int((group / usage).read_text()) + _table(group / "memory.stat")[cache]
        if group == root:
            return


def _table(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines}


def used_memory(leader: int) -> int:
    """Bytes of memory that a driver's Python process and its JVM occupy; workers that tasks started do not count."""
    found = 0
    for pid, group in _members(leader):
        if group == leader:
            with suppress(OSError):
                found += int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def hold_back(leader: int) -> None:
    """Let everybody else go first: with the processors, as far as we may take that back, and when memory runs out."""
    _weigh(leader, NICE)
    if may_restore():
        with suppress(OSError):
            os.setpriority(os.PRIO_PGRP, leader, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
    _expend(leader, EXPENDABLE)


def hurry(leader: int) -> None:
    """Let it have its share of the processors, with all of its threads and children."""
    _weigh(leader, 0)
    for group in {group for _, group in _members(leader)}:
        with suppress(OSError):
            os.setpriority(os.PRIO_PGRP, group, os.getpriority(os.PRIO_PROCESS, 0))


def let_go(leader: int) -> None:
    """Let it count as much as this process does itself."""
    hurry(leader)
    for pid, _ in _members(leader):
        _expend(pid, 0)


def _weigh(leader: int, more: int) -> None:
    """Where the kernel shares processors between sessions (autogroup), only the session's own niceness counts.

    Anybody may set it back to 0; but one of all users' changes per tenth of a second is allowed.
    """
    with suppress(OSError, ValueError, IndexError):
        own = int((PROC / "self" / "autogroup").read_text().split()[-1])
        for _ in range(10):
            try:
                (PROC / str(leader) / "autogroup").write_text(str(min(19, own + more)))
            except BlockingIOError:
                time.sleep(0.05)
            else:
                return


def _expend(pid: int, more: int) -> None:
    with suppress(OSError, ValueError):
        own = int((PROC / "self" / "oom_score_adj").read_text())
        (PROC / str(pid) / "oom_score_adj").write_text(str(min(1000, own + more)))


@cache
def may_restore() -> bool:
    """May we take back priority that was given up? Root may, others by their RLIMIT_NICE. A thread of its own tries."""
    allowed = []

    def trial() -> None:
        with suppress(OSError):
            me = threading.get_native_id()
            before = os.getpriority(os.PRIO_PROCESS, me)
            os.setpriority(os.PRIO_PROCESS, me, before + 1)
            os.setpriority(os.PRIO_PROCESS, me, before)
            allowed.append(True)

    thread = threading.Thread(target=trial)
    thread.start()
    thread.join()
    return bool(allowed)


def _members(leader: int) -> Iterator[tuple[int, int]]:
    """The processes of the session that this one leads, each with its group."""
    for path in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            _, _, group, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader:
                yield int(path.parent.name), int(group)
