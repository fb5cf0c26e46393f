"""Questions to a store that may never answer: asked in a thread of their own, so that nobody else waits.

Never queues questions: while one is not answered, the next of its kind is not asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from fencepost.ledger.patience import at_most

T = TypeVar("T")


class Aside:
    """One thread, which ends with the process, whatever it waits for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._change = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: Future[Any] | None = None

    def ask(self, what: Callable[[], T], wait_s: float, *, after: bool = False) -> T | None:
        """What it says; None if it failed, does not answer in time, or has not answered the question before.

        With `after`, it is asked all the same, as soon as the one before is answered.
        """
        with self._change:
            if self._last is not None and not self._last.done() and not after:
                return None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"fencepost-{self._name}", daemon=True)
                self._thread.start()
            answer: Future[T] = Future()
            self._last = answer
            self._tasks.put((answer, what))
        with suppress(Exception):
            return answer.result(wait_s)
        return None

    def _run(self) -> None:
        while True:
            answer, what = self._tasks.get()
            try:
                with at_most(0):  # one that failed is asked anew next time
                    answer.set_result(what())
            except Exception as error:  # noqa: BLE001 - whoever asked gets it
                answer.set_exception(error)
