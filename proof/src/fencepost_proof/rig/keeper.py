"""Kills one process when another is gone, so that no service outlives the test that started it.

It gets both as file descriptors, never as numbers: a number may belong to somebody else by now. The kernel's own way
(PR_SET_PDEATHSIG) would fire at the end of the thread that started the service, which may be a passing one.

    python keeper.py PARENT_FD SERVICE_FD
"""

from __future__ import annotations

import select
import signal
import sys


def main(parent: int, service: int) -> None:
    """Wait until either ends."""
    ends = select.poll()
    ends.register(parent, select.POLLIN)
    ends.register(service, select.POLLIN)
    if service not in dict(ends.poll()):
        signal.pidfd_send_signal(service, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
