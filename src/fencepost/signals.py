"""SIGTERM and SIGINT as a wish to stop, with a deadline. Never ends anything by itself.

first signal      the epoch in flight is finished or dropped, then the job ends
second signal     KeyboardInterrupt: at once
after 30 s        as if a second one had come: a sink that does not answer must not hold up the end
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

GRACE_S: Final = 30
CANCEL_S: Final = 5


def end_within(seconds: int) -> None:
    """From now on, as if a first signal had come."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        signal.alarm(seconds)


@contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a clean stop; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        signal.alarm(GRACE_S)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
