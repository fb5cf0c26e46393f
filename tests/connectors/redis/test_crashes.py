"""Redis and drivers that die, sleep and wake in the middle of an epoch of several chunks.

Counters are the sharp instrument: a chunk that is written twice, or not at all, shows in their sum.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis as client
from fencepost_proof.rig.proxy import Proxy
from fencepost_proof.rig.redis import Redis as Server

from fencepost import Redis, faults
from fencepost.errors import OperatorNeeded
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, Kept
from fencepost.testing import SinkDriver

TABLE = pa.table({"k": [f"k{i % 7}" for i in range(70)], "n": [10**i % 997 for i in range(70)]})


def sums(times: int = 1) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, n in zip(TABLE["k"].to_pylist(), TABLE["n"].to_pylist(), strict=True):
        found[key] = found.get(key, 0) + n * times
    return found


def counters(reader: Any) -> dict[str, int]:
    return {key.decode()[2:]: int(reader.get(key)) for key in reader.keys("n:*")}


def counting(url: str, **settings: Any) -> Redis:
    return Redis(url, **{"key": "k", "shape": "counter", "prefix": "n:", "name": "n", "chunk_rows": 2} | settings)


def started(sink: Redis, folder: Path, table: pa.Table = TABLE, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
    driver.start(table.schema)
    return driver


@pytest.fixture
def between_chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object], int], None]:
    """Let something happen after the n-th chunk, once."""

    def arrange(event: Callable[[], object], chunk: int) -> None:
        visits: list[str] = []

        def reach(point: str) -> None:
            visits.append(point)
            if visits.count("redis.chunk") == chunk and point == "redis.chunk":
                event()

        monkeypatch.setattr(faults, "reach", reach)

    return arrange


@pytest.mark.parametrize("shape", ["hash", "string", "counter"])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_commit_looks_at_the_keys_again_only_if_somebody_has_written(
    tmp_path: Path, server: Server, reader: Any, shape: str, *, foreign: bool
) -> None:
    def looked() -> int:
        found = reader.info("commandstats")
        return sum(found.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in ("hlen", "strlen"))

    driver = started(counting(server.url, shape=shape, order_by=None if shape == "counter" else "n"), tmp_path)
    driver.run(0, TABLE)
    handle, before = driver.pre_commit(1, TABLE), looked()
    driver.vote(1, handle)
    assert before + 7 == looked()
    if foreign:
        reader.set("another", "key")
    assert Outcome.DONE == driver.commit(1, handle)
    assert before + (14 if foreign else 7) == looked()
    assert not reader.hexists("fencepost:mark:job:n", "count")
    driver.session.close()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_kind_that_changed_since_the_vote_is_noticed_also_if_the_count_of_writes_is_the_same(
    tmp_path: Path, server: Server, reader: Any, *, hidden: bool
) -> None:
    """A save sets the server's count back."""

    def count() -> int:
        return int(reader.info("persistence")["rdb_changes_since_last_save"])

    reader.save()  # what other tests wrote would have to be counted up to, one by one
    driver = started(counting(server.url, shape="hash", order_by="n", chunk_rows=100), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    driver.vote(0, handle)
    before = count()
    if hidden:
        reader.save()
    reader.set("n:k6", "another kind")
    while hidden and count() < before:
        reader.set("another", "key")
    assert hidden == (before == count())
    with pytest.raises(OperatorNeeded, match="already holds a string"):
        driver.commit(0, handle)
    assert [b"n:k6"] == reader.keys("n:*")
    driver.session.close()


def test_a_kind_that_changes_between_two_chunks_stops_the_epoch_there(
    tmp_path: Path, server: Server, reader: Any, between_chunks: Any
) -> None:
    driver = started(counting(server.url, shape="hash", order_by="n"), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    driver.vote(0, handle)
    between_chunks(lambda: reader.set("n:k6", "another kind"), 1)
    with pytest.raises(OperatorNeeded, match="already holds a string"):
        driver.commit(0, handle)
    reader.delete("n:k6")
    assert Outcome.DONE == driver.commit(0, handle)
    assert 7 == len(reader.keys("n:*"))
    driver.session.close()


CRASH = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    import pyarrow as pa
    from fencepost import Redis
    from fencepost.testing import SinkDriver
    folder, url = Path(sys.argv[1]), sys.argv[2]
    table = pa.table({"k": [f"k{i % 7}" for i in range(70)], "n": [10**i % 997 for i in range(70)]})
    sink = Redis(url, key="k", shape="counter", prefix="n:", name="n", chunk_rows=2)
    driver = SinkDriver(sink, folder)
    driver.start(table.schema)
    handle = driver.pre_commit(0, table)
    driver.vote(0, handle)
    kept = [[k.file, k.rows, k.sum] for k in handle.kept]
    (folder / "handle").write_text(json.dumps([handle.id, kept, dict(handle.body)]))
    driver.commit(0, handle)
    """
)


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_driver_killed_between_chunks_is_finished_by_another_with_other_settings(
    tmp_path: Path, server: Server, reader: Any, chunk: int
) -> None:
    environment = os.environ | {"FENCEPOST_FAULT": f"redis.chunk=kill@{chunk}"}
    command = [sys.executable, "-c", CRASH, str(tmp_path), server.url]
    died = subprocess.run(command, check=False, env=environment, capture_output=True)
    assert -signal.SIGKILL == died.returncode, died.stderr
    # The next one was on its way.
    assert 2 * chunk <= len(counters(reader)) <= 2 * chunk + 2
    handle_id, kept, body = json.loads((tmp_path / "handle").read_text())
    handle = Handle(handle_id, "n", 70, tuple(Kept(*one) for one in kept), body)
    second = started(counting(server.url, chunk_rows=3), tmp_path, writer=2)
    assert Outcome.DONE == second.commit(0, handle)
    assert sums() == counters(reader)
    assert Outcome.DONE == second.commit(0, handle)
    second.run(1, TABLE)
    second.session.close()
    assert sums(2) == counters(reader)
    assert not reader.hexists("fencepost:mark:job:n", "part")


def test_an_older_driver_that_wakes_between_chunks_changes_nothing(
    tmp_path: Path, server: Server, reader: Any, between_chunks: Any
) -> None:
    first = started(counting(server.url), tmp_path)
    handle = first.pre_commit(0, TABLE)
    first.vote(0, handle)
    second = started(counting(server.url), tmp_path, writer=2)

    def newer() -> None:
        assert Outcome.DONE == second.commit(0, handle)
        second.run(1, TABLE)

    between_chunks(newer, 2)
    assert Outcome.DONE == first.commit(0, handle)
    first.session.close()
    second.session.close()
    assert sums(2) == counters(reader)


def test_two_drivers_that_commit_the_same_epoch_at_once_write_each_chunk_once(
    tmp_path: Path, server: Server, reader: Any
) -> None:
    drivers = [started(counting(server.url, chunk_rows=1), tmp_path, writer=n) for n in (1, 2, 3)]
    for epoch in range(5):
        handle = drivers[0].pre_commit(epoch, TABLE)
        with ThreadPoolExecutor() as pool:
            commits = [pool.submit(one.commit, epoch, handle) for one in drivers]
        assert [Outcome.DONE] * 3 == [commit.result() for commit in commits]
    for driver in drivers:
        driver.session.close()
    assert sums(5) == counters(reader)


@pytest.mark.server
@pytest.mark.parametrize("chunk", [1, 2])
def test_a_server_killed_between_chunks_goes_on_where_it_was(tmp_path: Path, between_chunks: Any, chunk: int) -> None:
    with Server(tmp_path / "server") as server:
        driver = started(counting(server.url), tmp_path)
        handle = driver.pre_commit(0, TABLE)
        driver.vote(0, handle)
        between_chunks(server.kill, chunk)
        assert Outcome.IN_DOUBT == driver.commit(0, handle)
        assert Outcome.IN_DOUBT == driver.commit(0, handle)
        server.start()
        with client.Redis.from_url(server.url) as reader:
            assert 2 * chunk <= len(counters(reader)) <= 2 * chunk + 2
            assert Outcome.DONE == driver.commit(0, handle)
            assert sums() == counters(reader)
        driver.session.close()


def test_a_lost_answer_is_in_doubt_and_the_rows_are_written_once(tmp_path: Path, server: Server, reader: Any) -> None:
    with Proxy(server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        driver = started(counting(url, chunk_rows=100), tmp_path)
        driver.run(0, TABLE)
        handle = driver.pre_commit(1, TABLE)
        driver.vote(1, handle)
        proxy.drop_answer_after(b"EVAL")
        assert Outcome.IN_DOUBT == driver.commit(1, handle)
        assert sums(2) == counters(reader)
        assert Outcome.DONE == driver.commit(1, handle)
        proxy.cut_before(b"EVAL")
        later = driver.pre_commit(2, TABLE)
        assert Outcome.IN_DOUBT == driver.commit(2, later)
        assert sums(2) == counters(reader)
        assert Outcome.DONE == driver.commit(2, later)
        driver.session.close()
    assert sums(3) == counters(reader)


@pytest.mark.server
def test_a_script_that_a_frozen_server_runs_after_its_repetition_does_nothing(tmp_path: Path) -> None:
    with Server(tmp_path / "server") as server:
        driver = started(counting(server.url, timeout=0.5), tmp_path)
        driver.run(0, TABLE)
        handle = driver.pre_commit(1, TABLE)
        driver.vote(1, handle)
        server.pause()
        assert Outcome.IN_DOUBT == driver.commit(1, handle)
        assert Outcome.IN_DOUBT == driver.commit(1, handle)
        server.resume()
        assert Outcome.DONE == driver.commit(1, handle)
        driver.session.close()
        with client.Redis.from_url(server.url) as reader:
            assert sums(2) == counters(reader)


def test_a_target_emptied_between_vote_and_commit_is_noticed(tmp_path: Path, server: Server, reader: Any) -> None:
    driver = started(counting(server.url), tmp_path)
    driver.run(0, TABLE)
    handle = driver.pre_commit(1, TABLE)
    driver.vote(1, handle)
    reader.flushall()
    with pytest.raises(OperatorNeeded) as behind:
        driver.commit(1, handle)
    assert "target_behind" == behind.value.code
    assert [] == reader.keys()
    driver.session.close()


def test_a_target_emptied_between_two_chunks_of_the_first_epoch_gets_all_of_it(
    tmp_path: Path, server: Server, reader: Any, between_chunks: Any
) -> None:
    driver = started(counting(server.url), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    driver.vote(0, handle)
    between_chunks(lambda: reader.delete(*reader.keys("n:*"), "fencepost:mark:job:n"), 2)
    assert Outcome.DONE == driver.commit(0, handle)
    assert sums() == counters(reader)
    driver.session.close()


@pytest.mark.parametrize("prefix", ["n:", "{n}:"])
def test_a_mark_that_was_removed_needs_an_operator_whose_command_works(
    tmp_path: Path, server: Server, reader: Any, prefix: str
) -> None:
    sink = counting(server.url, prefix=prefix)
    driver = started(sink, tmp_path)
    driver.run(0, TABLE)
    driver.run(1, TABLE)
    driver.session.close()
    [mark] = reader.keys("*fencepost:mark*")
    reader.delete(mark)
    later = SinkDriver(sink, tmp_path, writer=2, held=Epoch(1))
    with pytest.raises(OperatorNeeded) as behind:
        later.start(TABLE.schema)
    assert "target_behind" == behind.value.code
    command = behind.value.next.partition("stay lost: ")[2]
    tool, *words = shlex.split(command)
    assert "redis-cli" == tool
    server.cli(*words)
    later.start(TABLE.schema)
    later.run(2, TABLE)
    later.session.close()
    assert b"2" == reader.hget(mark, "epoch")


def test_readers_see_an_epoch_of_one_chunk_whole_and_no_value_going_back(
    tmp_path: Path, server: Server, reader: Any
) -> None:
    keys = [f"k{i}" for i in range(200)]
    driver = started(Redis(server.url, key="k", shape="string", prefix="v:"), tmp_path, epoch_table(keys, 0))
    over = threading.Event()
    seen: list[set[int]] = []

    def look() -> None:
        with client.Redis.from_url(server.url) as mine:
            while not over.is_set():
                found = mine.mget([f"v:{key}" for key in keys])
                seen.append({-1 if value is None else int(value) for value in found})

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for epoch in range(30):
            driver.run(epoch, epoch_table(keys, epoch))
    finally:
        over.set()
        watcher.join()
        driver.session.close()
    assert all(len(values) == 1 for values in seen)
    values = [one for [one] in map(list, seen)]
    assert sorted(values) == values
    assert len(set(values)) > 2


def epoch_table(keys: list[str], epoch: int) -> pa.Table:
    """Each key twice: an older value, then the epoch's own."""
    return pa.table({"k": keys * 2, "v": [0] * len(keys) + [epoch] * len(keys)})


@pytest.fixture(autouse=True)
def _nothing_armed() -> Iterator[None]:
    yield
    faults.arm({})
