"""Measures what watching costs a job: `make bench-watchers`.

    files ─► count per key ─► SQLite, one file per epoch, as fast as it goes
    watched: 50 open pages of the job (server-sent events) and one scrape of /metrics each second, by `fencepost ui`

One job, one run; windows with and without watchers take turns, so that a noisy minute hits both alike. Pages, scrapes
and their client share the machine with the job, so the ratio includes the processor time that they take from it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench.common import facts, fsync_ms, save

import fencepost as fp
from fencepost.spark import spark_session

ROWS, KEYS = 1000, 500
WARM_S = 30
SETTLE_S = 2
"""After each change, left out."""


def make_input(folder: Path, files: int) -> None:
    """One file per epoch."""
    folder.mkdir()
    for number in range(files):
        lines = (json.dumps({"id": number * ROWS + n, "key": f"key-{n % KEYS}"}) for n in range(ROWS))
        (folder / f"{number:06}.json").write_text("\n".join(lines) + "\n")


@contextmanager
def pages(checkpoint: Path) -> Iterator[tuple[str, str]]:
    """`fencepost ui` as a person starts it: its address, and the job's key in it."""
    command = [sys.executable, "-m", "fencepost", "ui", "--port", "0", str(checkpoint)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None, "it is a pipe"
    try:
        found = next(filter(None, (re.search(r"http://[\w.:]+", line) for line in server.stdout)))
        with urlopen(f"{found[0]}/api/v1/jobs") as answer:  # noqa: S310 - of this machine
            jobs = json.load(answer)["jobs"]
        yield found[0], next(job["id"] for job in jobs if job["checkpoint"] == str(checkpoint))
    finally:
        server.terminate()
        server.wait()


@contextmanager
def watchers(address: str, key: str, number: int) -> Iterator[None]:
    """Open pages and a scraper, in a process of their own."""
    command = [sys.executable, "-m", "bench.watchers", "--watch", address, key, "--pages", str(number)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None, "it is a pipe"
    try:
        assert client.stdout.readline() == "open\n", "the pages did not open"
        yield
        assert client.poll() is None, "the client ended too soon"
    finally:
        client.kill()
        client.wait()


async def watch(address: str, key: str, number: int) -> None:
    """The client: what browsers and Prometheus do."""
    host, port = address.removeprefix("http://").split(":")

    async def ask(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return reader, writer  # a writer that nobody holds closes the connection

    async def page() -> None:
        reader, _writer = await ask(f"/jobs/{key}/live")
        while await reader.read(65536):
            pass
        raise SystemExit("the server closed a page")

    async def scrape() -> None:
        while True:
            reader, writer = await ask("/metrics")
            await reader.read()
            writer.close()
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(page()) for _ in range(number)] + [asyncio.create_task(scrape())]
    await asyncio.sleep(1)
    print("open", flush=True)
    await asyncio.gather(*tasks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.watchers", description=__doc__)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20, help="of a window")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--watch", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.watch:
        asyncio.run(watch(*chosen.watch, chosen.pages))
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder, load = Path(place), os.getloadavg()
        os.environ["FENCEPOST_HOME"] = str(folder / "home")
        length = WARM_S + chosen.rounds * 2 * (chosen.seconds + SETTLE_S)
        make_input(folder / "in", 20 * length)
        spark = spark_session.make_session("bench-watchers", {"spark.master": "local[2]"})
        told = measure(spark, folder, chosen)
        about = facts(spark, fsync_ms(folder), load)
    print(f"{told['pages']} pages: {told['ratio']:.3f} of the time of an epoch without them")
    save("watchers-", about, told)
    return 0


def measure(spark: Any, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """The median time of an epoch in each window."""
    job = fp.Job("watched", checkpoint=folder / "checkpoint", spark=spark)
    rows = job.read(fp.Files(folder / "in", format="json", schema="id BIGINT, key STRING", max_files_per_epoch=1))
    job.write(rows.groupBy("key").count(), fp.SQLite(folder / "counts.db", table="counts", key="key"))
    times: list[float] = []
    job.on_complete(lambda event: times.append(time.monotonic()))
    runs = threading.Thread(target=job.run, daemon=True)
    runs.start()
    time.sleep(WARM_S)
    found: dict[bool, list[float]] = {False: [], True: []}
    # The job ends first, also if something fails: its folder is deleted.
    with ended(job, runs), pages(folder / "checkpoint") as (address, key):
        for number in range(2 * chosen.rounds):
            is_watched = number % 2 == 1
            with watchers(address, key, chosen.pages) if is_watched else nullcontext():
                gaps = window(times, chosen.seconds)
            found[is_watched].append(1000 * statistics.median(gaps))
            way = "watched" if is_watched else "alone"
            print(f"{way:8} {len(gaps)} epochs, median {found[is_watched][-1]:.1f} ms", flush=True)
        assert runs.is_alive(), "the input was used up"
    alone, watched = (statistics.median(found[way]) for way in (False, True))
    return {"pages": chosen.pages, "alone_ms": found[False], "watched_ms": found[True], "ratio": watched / alone}


@contextmanager
def ended(job: fp.Job, runs: threading.Thread) -> Iterator[None]:
    """End it whatever happens."""
    try:
        yield
    finally:
        job.stop()
        runs.join()


def window(times: list[float], seconds: int) -> list[float]:
    """The times between the epochs that ended in the next seconds."""
    time.sleep(SETTLE_S)
    began = len(times)
    time.sleep(seconds)
    ended = times[began:]
    return [later - earlier for earlier, later in pairwise(ended)]


if __name__ == "__main__":
    sys.exit(main())
