"""A socket forgets what it sent: a job that reads one goes on after any end without the lost lines; none is doubled."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sessions import SMALL
from streams import Place, drop, table

import fencepost as fp
from fencepost import faults

pytestmark = pytest.mark.spark
PATIENCE_S = 120


class Server:
    """Sends lines to whoever connected last."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.settimeout(PATIENCE_S)
        self._reader: socket.socket | None = None
        self.port: int = listener.getsockname()[1]

    def accept(self) -> None:
        """Wait for the next start of the job."""
        self.close()
        self._reader, _ = self._listener.accept()

    def say(self, *lines: str) -> None:
        assert self._reader is not None
        self._reader.sendall("".join(line + "\n" for line in lines).encode())

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, closing(Server(listener)) as made:
        yield made


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Also where a test fails."""
    yield
    faults.arm({})


def copying(place: Place, port: int, spark: Any = None, *, named: bool = False) -> fp.Job:
    """Every line of a socket; beside it a count of the first words of the lines in a folder (and of the socket)."""
    place.input.mkdir(exist_ok=True)
    job = place.job(spark, guarantee="at_most_once", conf=SMALL)
    files = job.read(fp.Files(str(place.input), format="text"), name="files" if named else None)
    lines = job.read(fp.Socket("127.0.0.1", port), name="lines" if named else None)
    job.write(lines, fp.SQLite(place.root / "heard.db", table="heard"))
    counted = files if named else files.unionAll(lines)  # Spark allows a name once per query
    return job.write(counted.selectExpr("split(value, ' ')[0] AS word").groupBy("word").count(), place.counts_sink())


def heard(place: Place) -> list[str]:
    there = (place.root / "heard.db").exists()
    return [value for (value,) in table(place.root / "heard.db", "heard")] if there else []


def is_idle(place: Place) -> bool:
    """Is every epoch that Spark began complete?"""
    begun, complete = (
        {path.name for path in (place.checkpoint / log).glob("[0-9]*")} for log in ("offsets", "commits")
    )
    return begun == complete


def until(true: Callable[[], bool], query: Any = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert query is None or query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def arrives(place: Place, lines: list[str], files: int, query: Any = None) -> None:
    """Wait for these lines, each once, and for as many files; and until Spark knows it too."""
    until(lambda: sorted(lines) == heard(place) and place.counts().get("file") == files and is_idle(place), query)


def ends(query: Any) -> None:
    until(lambda: not query.isActive)


def test_new_lines_arrive_after_a_kill_and_none_is_doubled(spark: Any, place: Place, server: Server) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    child = subprocess.Popen([sys.executable, __file__, str(place.root), str(server.port)], env=environment)
    server.accept()
    lines = [f"before {number}" for number in range(9)]
    server.say(*lines)
    drop(place.input, "file\n")
    arrives(place, lines, 1)
    child.kill()
    assert -signal.SIGKILL == child.wait(PATIENCE_S)
    query = copying(place, server.port, spark).start()
    server.accept()
    for number, line in enumerate(("later 1", "later 2")):
        lines.append(line)
        server.say(line)
        drop(place.input, "file\n")
        arrives(place, lines, number + 2, query)
    query.stop()
    assert {"before": 9, "later": 2, "file": 3} == place.counts()


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=[pytest.mark.since(4, 2), pytest.mark.long])])
def test_new_lines_arrive_after_every_kind_of_end(spark: Any, place: Place, server: Server, named: bool) -> None:
    lines: list[str] = []
    for number, fault in enumerate(("", "claim.write.before=fail", "claim.write.after=fail", "")):
        query = copying(place, server.port, spark, named=named).start()
        server.accept()
        drop(place.input, "file\n")
        for part in ("first", "second"):
            lines.append(f"{part} {number}")
            server.say(lines[-1])
            arrives(place, lines, number + 1, query)
        if fault:
            faults.arm({faults.ARM: fault})
            server.say(f"last {number}")
            ends(query)
            faults.arm({})
        query.stop()
        # The one that was claimed and not written is lost: the socket does not send it again.
        lines += [f"last {number}"] if "after" in fault else []
    assert sorted(lines) == heard(place)


@pytest.mark.parametrize("kind", ["rate", "rate-micro-batch"])
def test_a_source_that_knows_its_offsets_keeps_them(spark: Any, place: Place, kind: str) -> None:
    options = {"rowsPerSecond": "20"} if kind == "rate" else {"rowsPerBatch": "5"}
    for fault in ("claim.write.before=fail@3", "claim.write.after=fail@3"):
        before = len(values(place))
        job = place.job(spark, guarantee="at_most_once")
        numbers = job.read(spark.readStream.format(kind).options(**options).load()).select("value")
        job.write(numbers, fp.SQLite(place.database, table="numbers"))
        faults.arm({faults.ARM: fault})
        ends(job.start())
        assert before < len(values(place))
    found = values(place)
    assert [*range(found[-1] + 1)] != found == sorted({*found}), "one epoch was claimed and not written"


def values(place: Place) -> list[int]:
    return sorted(value for (value,) in table(place.database, "numbers")) if place.database.exists() else []


if __name__ == "__main__":
    copying(Place(Path(sys.argv[1])), int(sys.argv[2])).run()
