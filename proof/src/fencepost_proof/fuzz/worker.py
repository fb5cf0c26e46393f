"""Starts jobs in a process of its own, which a fault kills with SIGKILL."""

from __future__ import annotations

import multiprocessing
from typing import Any

from fencepost.spark import spark_session
from fencepost_proof.fuzz.plans import Place, Plan
from fencepost_proof.fuzz.runs import here

SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}


class Worker:
    """A process with a session. If it was killed, the next start has a new one."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._process: Any = None
        self._pipe: Any = None

    def __call__(self, plan: Plan, place: Place, fault: str) -> str:
        """Start a job there: a `Starter`."""
        if self._process is None:
            spawn = multiprocessing.get_context("spawn")
            self._pipe, other = spawn.Pipe()
            self._process = spawn.Process(target=serve, args=(other, self._settings), daemon=True)
            self._process.start()
            other.close()
        self._pipe.send((plan, place, fault))
        try:
            return str(self._pipe.recv())
        except EOFError:
            self._process.join()
            self._process = None
            return "killed" if fault else "failed: the process ended"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def serve(pipe: Any, settings: dict[str, str]) -> None:
    """Start what is asked for, until the other end is closed."""
    start = here(spark_session.make_session("fuzz", settings, jar=True))
    while True:
        pipe.send(start(*pipe.recv()))
