"""The meter of bench/peers: what it says of a system that is exact, and of those that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.peers import __main__ as peers
from bench.peers import systems, tables
from bench.peers.meter import MARK, PARTITIONS, Child, Tally, Usage, first_of, late_ms, name, until, with_children
from bench.peers.systems import SYSTEMS
from confluent_kafka import Producer
from fencepost_proof.rig.jars import RigFailed
from fencepost_proof.rig.kafka import Broker

from fencepost.spark import class_archive

KEYS, RECORDS = 7, 100

Row = tuple[int, int]
"""Key and count."""


def one_by_one() -> list[Row]:
    """A row for each record; record number i has key i mod KEYS."""
    counts = Counter[int]()
    rows = []
    for number in range(RECORDS):
        counts[number % KEYS] += 1
        rows.append((number % KEYS, counts[number % KEYS]))
    return rows


def in_epochs() -> list[Row]:
    """The last row of each key, of ten records at a time."""
    rows = one_by_one()
    return [row for start in range(0, RECORDS, 10) for row in dict(rows[start : start + 10]).items()]


def an_epoch_twice() -> list[Row]:
    rows = in_epochs()
    return rows[:14] + rows[7:]


def a_record_lost() -> list[Row]:
    return [row for row in one_by_one() if row != (3, len(range(3, RECORDS, KEYS)))]


def a_record_counted_twice() -> list[Row]:
    return [(key, count + (key == 3 and count > 5)) for key, count in one_by_one()]


def tally(rows: list[Row]) -> Tally:
    found = Tally(KEYS)
    for at, (key, count) in enumerate(rows, start=1):
        found.add(key, count, float(at))
    return found


@pytest.mark.parametrize("rows", [one_by_one(), in_epochs()], ids=["one by one", "in epochs"])
def test_an_exact_output_is_called_exact(rows: list[Row]) -> None:
    found = tally(rows)
    assert (found.wrong(RECORDS), found.repeated, found.covered) == ([], 0, RECORDS)


def test_a_lost_record_a_double_count_and_an_epoch_written_twice_are_seen() -> None:
    lost, double, again = tally(a_record_lost()), tally(a_record_counted_twice()), tally(an_epoch_twice())
    assert (lost.wrong(RECORDS), lost.repeated) == ([3], 0)
    assert (double.wrong(RECORDS), double.repeated) == ([3], 0)
    assert (again.wrong(RECORDS), again.repeated) == ([], 7)


def test_a_record_is_seen_with_the_first_count_that_includes_it() -> None:
    found = Tally(2)
    for key, count, at in [(0, 1, 10.0), (1, 2, 11.0), (0, 2, 12.0)]:
        found.add(key, count, at)
    assert list(found.seen) == [10.0, 11.0, 12.0, 11.0]


def test_lateness_is_of_the_records_that_were_produced_in_the_span() -> None:
    produced, seen = array("d", [1.0, 2.0, 3.0, 4.0]), array("d", [1.5, 2.25, 3.125, 9.0])
    assert late_ms(produced, seen, 2.0, 4.0) == [125.0, 250.0]
    assert first_of(produced, seen, 2.5) == 3.125


@pytest.mark.parametrize("seen", [[1.5, 0.0], [1.5]], ids=["a gap", "the end"])
def test_a_record_that_was_never_seen_has_no_lateness_instead_of_a_small_one(seen: list[float]) -> None:
    with pytest.raises(LookupError, match="record 1"):
        late_ms(array("d", [1.0, 2.0]), array("d", seen), 0.0, 9.0)


def test_processes_are_found_by_their_mark_whoever_started_them() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=0)"
    marked = {**os.environ, MARK: "a test"}
    with (
        subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=marked | {MARK: "other"}
        ) as other,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=marked) as parent,
    ):
        usage = Usage("a test")
        until(lambda: len(usage.pids()) == 2, "both processes were found")
        assert sorted(usage.pids()) == sorted(with_children(parent.pid))
        before = usage.look()[0]
        for each in (parent, other):
            each.communicate()
        assert usage.pids() == []
        assert usage.look()[0] >= before > 0
        usage.close()


def test_of_a_broker_only_what_was_committed_is_seen(broker: Broker, tmp_path: Path) -> None:
    """The processes of the meter, with a system that aborts something wrong and then commits what is right."""
    arriving, out = (broker.create_topic(f"peers-{word}", partitions=PARTITIONS) for word in ("in", "out"))
    reader = Child("read", broker.servers, out, log=tmp_path / "seen", keys=KEYS)
    feeder = Child("feed", broker.servers, arriving, log=tmp_path / "produced", keys=KEYS, rate=0, records=RECORDS)
    try:
        feeder.wait()
        produced = feeder.finish()
        assert len(produced) == RECORDS
        producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": "peers"})
        producer.init_transactions(60)
        for rows, right in (([(0, 10_000)], False), (one_by_one(), True)):
            producer.begin_transaction()
            for key, count in rows:
                producer.produce(out, key=name(key), value=str(count), partition=key % PARTITIONS)
            (producer.commit_transaction if right else producer.abort_transaction)(60)
        until(lambda: reader.last.get("covered", 0) >= RECORDS, "all were seen", 60)
        assert len(late_ms(produced, reader.finish(), 0, produced[-1] + 1)) == RECORDS
        assert reader.verdict(RECORDS) == {"rows": RECORDS, "wrong_keys": 0, "repeated": 0}
        assert reader.verdict(RECORDS + 1)["wrong_keys"] == 1
    finally:
        reader.close()
        feeder.close()


def life(system: str, p50: float, **more: object) -> dict[str, object]:
    late = {"p50": p50, "p99": 2 * p50, "max": 3 * p50}
    return {"system": system, "rate": 1000, "first": late, "warm": late, "wrong_keys": 0, "repeated": 0, **more}


def test_tables_have_medians_of_all_runs_and_ratios_within_one() -> None:
    runs = [
        {"lives": [life("fencepost", 100), life("Flink", 200)], "facts": {"cores": 2}, "command": "a"},
        {"lives": [life("fencepost", 300), life("Flink", 400)], "facts": {"cores": 2}, "command": "b"},
        {"lives": [life("Kafka Streams", 50)], "facts": {"cores": 2}, "command": "c"},
    ]
    said = tables.text(runs)
    assert "| fencepost | 200 | 400 | 200 | 400 | 1.00 |" in said
    assert "| Flink | 300 | 600 | 300 | 600 | 0.62 |" in said
    assert "| Kafka Streams | 50 | 100 | 50 | 100 |  |" in said


def planned(*options: str) -> list[tuple[str, int, set[str]]]:
    chosen = peers.parse(options)
    return [(system.name, rate, kinds) for system, rate, kinds in peers.lives([*SYSTEMS.values()], chosen)]


def test_every_system_has_its_lives_and_a_first_launch_is_measured_apart() -> None:
    names = [system.name for system in SYSTEMS.values()]
    everything = {"start", "steady", "kill"}
    low = {name: everything & system.kinds for name, system in zip(names, SYSTEMS.values(), strict=True)}
    high = [name for name, kinds in low.items() if "steady" in kinds]
    assert {"fencepost", "plain Spark", "Kafka Streams", "Flink"} == {*high}
    assert ({"start"}, {"kill"}) == (low["fencepost, first launch"], low["fencepost --standby"])
    assert [(name, 1000, low[name]) for name in names] == planned()[: len(names)]
    assert [(name, 10_000, {"start", "steady"}) for name in high] == planned()[len(names) : -len(high)]
    assert [(name, 0, {"catch-up"}) for name in high] == planned()[-len(high) :]
    assert [(name, 1000, {"start"}) for name in names if "standby" not in name] == planned("--only", "start")


def test_what_is_measured_is_saved_unless_told_otherwise() -> None:
    assert (True, False) == (peers.parse([]).save, peers.parse(["--no-save"]).save)


def test_without_a_compiler_nothing_is_left_out_silently(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(systems.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(systems.subprocess, "run", lambda command, **_: asked.append(command))
    monkeypatch.setattr(systems, "java", lambda: "/usr/bin/java")
    with pytest.raises(RigFailed, match="apt-get install openjdk-17-jdk-headless"):
        systems.compiler()
    assert [["setup", "jdk"]] == [[Path(command[0]).name, *command[1:]] for command in asked]
    monkeypatch.setattr(systems.Java, "set_up", lambda *_: systems.compiler())
    monkeypatch.setattr(peers.signal, "signal", lambda *_: None)
    assert 1 == peers.main(["--systems", "flink", "--no-save"])
    assert "openjdk-17-jdk-headless" in capfd.readouterr().err


def test_lives_begin_when_there_is_a_class_archive_and_a_first_launch_has_none(tmp_path: Path) -> None:
    ours, first = systems.Fencepost(), systems.First()
    for each in (ours, first):
        each._jars, each._cache, each._empty = "", tmp_path / "cache", tmp_path / "empty"  # type: ignore[attr-defined]
    assert (False, True) == (ours.is_prepared(), first.is_prepared())
    for folder in ("cache", "empty"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "key.jsa").touch()
    assert ours.is_prepared()
    first.command("", "", "", tmp_path / "own")
    assert {class_archive.CACHE: str(tmp_path / "empty")} == first.environment
    assert not (tmp_path / "empty").exists()


def test_a_mismatch_is_named() -> None:
    assert tables.mismatch(life("Flink", 1)) == ""
    assert tables.mismatch(life("Flink", 1, repeated=5)) == "5 rows came again"
    assert tables.mismatch(life("fencepost", 1, wrong_keys=2)) == "2 keys have a wrong count"
