"""What each service of the rig needs as a process: a port, some patience, and an end that comes with ours."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fencepost_proof.rig.jars import RigFailed

HOST = "127.0.0.1"
PORTS = range(10_000, 30_000)
"""Below those that the kernel gives to outgoing connections: a killed broker must find its port free again."""
PATIENCE_S = 180

LOGGING = """\
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c: %m%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""
"""What the Java servers of the rig are told: warnings and worse, on their standard output."""

LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %c: %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
"""The same for those that log by logback."""


def keep(service: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Start the process that kills a service when we are gone, however we went."""
    ends = [os.pidfd_open(os.getpid()), os.pidfd_open(service.pid)]
    try:
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), *map(str, ends)]
        return subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL, start_new_session=True)
    finally:
        for end in ends:
            os.close(end)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, at this moment."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise RigFailed("No port is free.")


def is_free(port: int) -> bool:
    """Could a server bind it?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something that takes a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise RigFailed(f"It took more than {PATIENCE_S} s until {what}.")
        time.sleep(0.05)


def in_foreground(serve: Callable[[Path], None]) -> int:
    """Run servers for a person's own trials, in a folder that goes with them, until Ctrl-C; the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
            serve(Path(folder))
    except KeyboardInterrupt:
        return 0
    except RigFailed as error:
        print(error, file=sys.stderr)
    return 1


def stay() -> None:
    """Until Ctrl-C."""
    print("Ctrl-C ends them, and what they hold.", file=sys.stderr)
    signal.pause()
