"""Measures what an epoch pays for being watched: `python -m bench.watch`.

    journal    the events that an epoch with one sink notes, into a real file: what metrics, traces and pages read
    scraped    the same while this process answers a scrape every second, as job.metrics() does

Functions alone, without Spark. Rounds alternate, so that a noisy minute hits both alike. In milliseconds an epoch: the
median and the mean by the clock, and the processor's time of the thread that notes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from fencepost.observe.events import Kind
from fencepost.observe.journal import Observer
from fencepost.observe.metrics import Metrics, serve
from fencepost.store import place

EPOCHS = 200
"""In each round."""
REST_S = 0.01
"""Between two epochs, so that a round has some scrapes."""


def epoch(observer: Observer, number: int) -> None:
    """What the driver and its performer note."""
    observer.note(Kind.OPENED, epoch=number, rows=1000)
    observer.note(Kind.PRE_COMMITTED, epoch=number, units=1, seconds=0.01)
    observer.note(Kind.VOTED, epoch=number, sink="db", seconds=0.01)
    observer.note(Kind.DECIDED, epoch=number, seconds=0.005)
    observer.note(Kind.COMMITTED, epoch=number, sink="db", units=1, rows=1000, seconds=0.01, what=None)
    observer.note(Kind.COMPLETE, epoch=number, rows=1000, seconds=0.05)


def one_round(observer: Observer, first: int) -> tuple[float, float, float]:
    """Milliseconds an epoch: median and mean by the clock, mean by the processor."""
    took, busy = [], []
    for number in range(first, first + EPOCHS):
        time.sleep(REST_S)
        began, before = time.perf_counter(), time.thread_time()
        epoch(observer, number)
        busy.append(time.thread_time() - before)
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took), 1000 * statistics.mean(took), 1000 * statistics.mean(busy)


def scrape(port: int, go_on: threading.Event, over: threading.Event) -> None:
    """Every second, while the round wants it."""
    while not over.wait(1):
        if go_on.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=10)
    rounds = arguments.parse_args().rounds
    found: dict[str, list[tuple[float, float, float]]] = {"journal": [], "scraped": []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fencepost").mkdir()
        observer = Observer("bench")
        observer.write_to(folder, 1)
        observer.dead = frozenset({"dead"})
        port = serve(Metrics(lambda: [("bench", place(folder))]), "127.0.0.1:0")
        go_on, over = threading.Event(), threading.Event()
        scraper = threading.Thread(target=scrape, args=(port, go_on, over))
        scraper.start()
        for number in range(rounds):
            for name, times in found.items():
                go_on.set() if name == "scraped" else go_on.clear()
                times.append(one_round(observer, number * EPOCHS))
        over.set()
        scraper.join()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {rounds} rounds, ms an epoch")
    for name, times in found.items():
        median, mean, busy = (statistics.median(values) for values in zip(*times, strict=True))
        print(f"{name:8} median {median:.3f}, mean {mean:.3f}, processor {busy:.3f}")


if __name__ == "__main__":
    main()
