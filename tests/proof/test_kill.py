"""Every crash point × every sink, with a real SIGKILL and real files, on the stand-in engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.targets import BROKER, CASSANDRA, MARIADB, POSTGRES, REDIS, TARGETS, Box, catalog_of
from killing import FAILED, FENCED, PATIENCE_S, PER_EPOCH, Scene, check_by_path, wait, wait_until_stopped
from pyiceberg.catalog import load_catalog

from fencepost.guarantee import Guarantee

pytestmark = pytest.mark.in_memory
SPECIAL = ("hasty", "naked")
"""Targets of single tests."""
SERVED = {"kafka", "kafka_tasks", "hasty", "postgres", "mysql", "redis", "cassandra"}
"""Those that lie in a server."""


def sets(*names: tuple[str, ...]) -> list[Any]:
    """Parameters: targets that are written to at once."""
    marks = [[pytest.mark.server] * (not SERVED.isdisjoint(targets)) for targets in names]
    return [pytest.param(one, marks=mark, id="+".join(one)) for one, mark in zip(names, marks, strict=True)]


IN_FIRST = ("delta_wider", "iceberg_wider")
"""Targets whose first epoch is the one to kill: it adds the columns."""
SETS = sets(*((name,) for name in TARGETS if name not in (*SPECIAL, *IN_FIRST)))
SETS += [pytest.param((name,), marks=pytest.mark.long, id=name) for name in IN_FIRST]
SETS.append(pytest.param(("box", "sqlite", "files"), marks=pytest.mark.long, id="box+sqlite+files"))


def of_mariadb(server: MariaDB) -> str:
    client, environment = server.client_command
    return json.dumps({"port": server.port, "client": client, "environment": environment})


def of_cassandra(server: Cassandra) -> str:
    server.run(
        "CREATE KEYSPACE IF NOT EXISTS proof WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    return str(server.port)


SERVERS: tuple[tuple[set[str], str, str, Callable[[Any], str]], ...] = (
    ({"kafka", "kafka_tasks", "hasty"}, BROKER, "broker", lambda server: server.servers),
    ({"postgres"}, POSTGRES, "postgres", lambda server: server.dsn),
    ({"mysql"}, MARIADB, "mariadb", of_mariadb),
    ({"redis"}, REDIS, "redis_server", lambda server: server.url),
    ({"cassandra"}, CASSANDRA, "cassandra", of_cassandra),
)
"""Targets, the variable that tells them where their server is, the fixture that starts it, its address."""
CRASH = "commit.before=kill@2"


def points_of(scene: Scene, crash: str = CRASH) -> tuple[Counter[str], Counter[str]]:
    """How often each point is passed by a run that dies in one of its epochs, and by the run that recovers it."""
    first, second = scene.folder / "first", scene.folder / "second"
    assert (-signal.SIGKILL, 0) == (scene.run(crash, first), scene.run("", second))
    return Counter(first.read_text().split()), Counter(second.read_text().split())


def fresh(folder: Path, targets: tuple[str, ...], number: int, **settings: object) -> Scene:
    """A scene in a folder of its own."""
    place = folder / str(number)
    place.mkdir()
    return Scene(place, targets, **settings)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers that a test's targets lie in."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    wanted = set(params.get("targets", ()))
    for names, variable, service, address in SERVERS:
        if not wanted.isdisjoint(names):
            monkeypatch.setenv(variable, address(request.getfixturevalue(service)))


@pytest.mark.heavy
@pytest.mark.parametrize("targets", SETS)
def test_a_kill_at_any_point_loses_and_doubles_nothing(tmp_path: Path, targets: tuple[str, ...]) -> None:
    """Every point is killed; then a new process starts and an independent reader looks."""
    most = 1 if set(IN_FIRST) & set(targets) else 2
    crash = CRASH if most == 2 else "commit.before=kill@1"
    first, second = points_of(fresh(tmp_path, targets, 0, keep=2), crash)
    wrong, hit = {}, set()
    for number, point in enumerate(first | second, start=1):
        scene = fresh(tmp_path, targets, number, keep=2)
        if point not in first:
            scene.run(crash)
        visit = min(most, first[point] or second[point])
        if scene.run(f"{point}=kill@{visit}") == -signal.SIGKILL:
            hit.add(point)
        ended = scene.run()
        if ended != 0 or not scene.is_exact() or scene.leftovers():
            wrong[f"{point}@{visit}"] = (ended, scene.verdict(), scene.torn(), scene.leftovers())
    assert {} == wrong
    assert set(first | second) == hit


@pytest.mark.heavy
@pytest.mark.parametrize(
    "targets",
    [
        *sets(("sqlite",), ("files",), ("box", "sqlite"), ("postgres",)),
        *(pytest.param((name,), marks=pytest.mark.long, id=name) for name in ("kafka", "kafka_tasks")),
    ],
)
def test_a_driver_that_sleeps_while_another_takes_over_is_fenced_and_changes_nothing(
    tmp_path: Path, targets: tuple[str, ...]
) -> None:
    """SIGSTOP at every point from the pre-commit on, start a second driver, SIGCONT the first."""
    first, _ = points_of(fresh(tmp_path, targets, 0))
    points = [point for point in first if not point.startswith(("recover", "engine", "barrier", "store.before_rename"))]
    wrong = {}
    for number, point in enumerate(points, start=1):
        scene = fresh(tmp_path, targets, number)
        # The last visit before the crash: in the second epoch, not in the driver's own start.
        sleeper = scene.start(f"{point}=stop@{first[point]}")
        assert wait_until_stopped(sleeper)
        before = scene.writers()
        second = scene.start()
        wait_for_takeover(scene, before, point)
        time.sleep(0.1)
        os.kill(sleeper, signal.SIGCONT)
        codes = (wait(sleeper), wait(second))
        if codes != (FENCED, 0) or not scene.is_exact():
            wrong[point] = (codes, scene.verdict())
    assert {} == wrong


def wait_for_takeover(scene: Scene, before: int, where: str) -> None:
    """Until another driver is noted. Woken sooner, the sleeper would go on unfenced, and rightly so."""
    deadline = time.monotonic() + PATIENCE_S
    while scene.writers() <= before:
        assert time.monotonic() < deadline, f"nobody took over from a driver that sleeps at {where}"
        time.sleep(0.005)


@pytest.mark.heavy
def test_a_driver_that_sleeps_in_its_own_recovery_harms_nothing(tmp_path: Path) -> None:
    """It wakes after another one recovered and went on; afterwards the checkpoint must still be good for a third."""
    targets = ("sqlite", "files")
    _, second = points_of(fresh(tmp_path, targets, 0))
    wrong = {}
    for number, point in enumerate((p for p in second if p.startswith("recover")), start=1):
        scene = fresh(tmp_path, targets, number)
        scene.run(CRASH)
        sleeper = scene.start(f"{point}=stop")
        assert wait_until_stopped(sleeper)
        other = scene.run()
        os.kill(sleeper, signal.SIGCONT)
        woken = wait(sleeper)
        longer = Scene(scene.folder, targets, numbers=(*scene.numbers, 99, 101))
        # Before its own take-over the sleeper is only late, and comes last.
        if other != 0 or woken not in (0, FENCED) or longer.run() != 0 or not longer.is_exact():
            wrong[point] = (other, woken, longer.verdict())
    assert {} == wrong


def test_of_two_first_starts_at_once_neither_writes_beside_the_other(tmp_path: Path) -> None:
    """The box cannot tell lineages apart: only a common ledger keeps its rows single."""
    wrong = {}
    for number in range(12):
        scene = fresh(tmp_path, ("box",), number)
        codes = sorted(wait(pid) for pid in [scene.start(), scene.start()])
        ended = scene.run()
        lineages = list((scene.folder / "checkpoint" / "fencepost").iterdir())
        if ended != 0 or not scene.is_exact() or len(lineages) != 1 or codes[0] != 0:
            wrong[number] = (codes, ended, scene.verdict(), lineages)
    assert {} == wrong


@pytest.mark.heavy
@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE], ids=lambda level: level.word)
def test_a_kill_at_any_point_leaves_the_weaker_levels_what_they_say(tmp_path: Path, guarantee: Guarantee) -> None:
    """at_least_once never loses, at_most_once never doubles, and both lose or double one epoch at most."""
    scene = fresh(tmp_path, ("sqlite",), 0, guarantee=guarantee)
    log = scene.folder / "points"
    assert 0 == scene.run("", log)
    wrong = {}
    for number, (point, count) in enumerate(Counter(log.read_text().split()).items(), start=1):
        scene = fresh(tmp_path, ("sqlite",), number, guarantee=guarantee)
        killed, ended = scene.run(f"{point}=kill@{min(2, count)}"), scene.run()
        (verdict,) = scene.verdict().values()
        bad, allowed = ("lost", "doubled") if guarantee is Guarantee.AT_LEAST_ONCE else ("doubled", "lost")
        if (killed, ended) != (-signal.SIGKILL, 0) or verdict[bad] or verdict["wrong"] or verdict[allowed] > PER_EPOCH:
            wrong[point] = (killed, ended, verdict)
    assert {} == wrong


@pytest.mark.parametrize("point", [None, "recover.void.before", "recover.void.after"])
def test_a_lost_transaction_whose_rows_were_not_kept_makes_the_epoch_run_again(
    tmp_path: Path, point: str | None
) -> None:
    """Nothing of it was visible, so the decision is taken back."""
    scene = Scene(tmp_path, ("bare", "sqlite"))
    assert -signal.SIGKILL == scene.run("decide.after=kill@2")
    Box(tmp_path / "bare").lose()
    if point is not None:
        assert -signal.SIGKILL == scene.run(f"{point}=kill")
    assert 0 == scene.run()
    assert scene.is_exact(), scene.verdict()
    assert any('"kind":"void"' in path.read_text() for path in scene.records())


def test_a_decision_is_not_voided_because_the_sinks_were_named_in_another_order(tmp_path: Path) -> None:
    """One of two sinks without kept rows is visible, the other was lost: whoever is asked first, a person chooses."""
    scene = Scene(tmp_path, ("bare", "naked"))
    assert -signal.SIGKILL == scene.run("commit.after=kill@3")
    Box(tmp_path / "bare").lose()
    Box(tmp_path / "naked").lose()
    assert FAILED == Scene(tmp_path, ("naked", "bare")).run()
    assert "partly_lost" in (tmp_path / "error").read_text()


def test_the_checker_runs_without_fencepost(tmp_path: Path) -> None:
    """And agrees that a clean run is clean."""
    scene = Scene(tmp_path, ("sqlite", "files", "box"))
    assert 0 == scene.run()
    assert 0 == check_by_path(scene)


@pytest.mark.parametrize("targets", sets(*((name,) for name in sorted(TARGETS))))
def test_the_checker_sees_a_lost_and_a_doubled_row(tmp_path: Path, targets: tuple[str, ...]) -> None:
    """A sabotaged twin: the same run compared with a source that has one record more, or one less."""
    scene = Scene(tmp_path, targets)
    assert 0 == scene.run()
    longer = Scene(tmp_path, targets, numbers=(*scene.numbers, 99))
    shorter = Scene(tmp_path, targets, numbers=scene.numbers[:-1])
    assert 1 == check_by_path(longer)
    assert 1 == check_by_path(shorter)


@pytest.mark.parametrize("target", ["delta_whole", "iceberg_whole"])
def test_the_checker_sees_an_epoch_that_is_there_in_two_versions(tmp_path: Path, target: str) -> None:
    """A sabotaged twin: the newest rows are right in both, because each epoch replaces all of them."""
    scene = Scene(tmp_path, (target,))
    assert 0 == scene.run()
    assert ({}, True) == (scene.torn(), scene.is_exact())
    epochs = Scene(tmp_path, (target,), numbers=scene.numbers[:4]).torn()
    assert [[4, 8, 12]] == list(epochs.values())
    again(scene, target)
    assert [[4, 8, 12, 12]] == list(scene.torn().values())
    assert [{"lost": 0, "doubled": 0, "wrong": 0}] == list(scene.verdict().values())
    assert not scene.is_exact()


def again(scene: Scene, target: str) -> None:
    """The last epoch once more, by hand."""
    if target == "delta_whole":
        log = scene.folder / "whole" / "_delta_log"
        newest = max(log.glob("[0-9]*.json"))
        lines = [json.loads(line) for line in newest.read_text().splitlines()]
        adds = [line for line in lines if "add" in line]
        copies = [{"add": line["add"] | {"path": f"copy-{line['add']['path'].replace('/', '-')}"}} for line in adds]
        for line, copy in zip(adds, copies, strict=True):
            shutil.copy(scene.folder / "whole" / line["add"]["path"], scene.folder / "whole" / copy["add"]["path"])
        removed = [{"remove": {"path": line["add"]["path"], "dataChange": True}} for line in adds]
        text = "\n".join(json.dumps(line) for line in (*removed, *copies))
        (log / f"{int(newest.stem) + 1:020d}.json").write_text(text)
        return
    catalog = load_catalog("default", **catalog_of(scene.folder))
    table = catalog.load_table("proof.whole")
    rows = table.scan().to_arrow()
    with table.transaction() as change:
        change.append(rows.slice(0, 0))  # a snapshot that changes nothing
    catalog.close()


def test_a_lost_transaction_is_redone_from_the_kept_rows(tmp_path: Path) -> None:
    """The broker forgets a decided transaction while the driver is dead: nothing is lost."""
    scene = Scene(tmp_path, ("box", "sqlite"))
    assert -signal.SIGKILL == scene.run("decide.after=kill@2")
    Box(tmp_path / "box").lose()
    assert 0 == scene.run()
    assert scene.is_exact(), scene.verdict()


@pytest.mark.parametrize("point", ["recover.redo.before", "recover.redo.after", "recover.redo.record.after"])
def test_a_kill_while_redoing_loses_nothing(tmp_path: Path, point: str) -> None:
    """Recovery of the recovery."""
    scene = Scene(tmp_path, ("box", "sqlite"))
    assert -signal.SIGKILL == scene.run("decide.after=kill@2")
    Box(tmp_path / "box").lose()
    assert -signal.SIGKILL == scene.run(f"{point}=kill")
    assert 0 == scene.run()
    assert scene.is_exact(), scene.verdict()


def test_at_least_once_doubles_and_at_most_once_loses_when_killed(tmp_path: Path) -> None:
    """The two weaker levels are what they say, which also shows that this test can see a duplicate and a loss."""
    least = fresh(tmp_path, ("sqlite",), 1, guarantee=Guarantee.AT_LEAST_ONCE)
    most = fresh(tmp_path, ("sqlite",), 2, guarantee=Guarantee.AT_MOST_ONCE)
    assert -signal.SIGKILL == least.run("write.after=kill@2")
    assert -signal.SIGKILL == most.run("claim.write.before=kill@2")
    assert (0, 0) == (least.run(), most.run())
    assert [{"lost": 0, "doubled": 4, "wrong": 0}] == list(least.verdict().values())
    assert [{"lost": 4, "doubled": 0, "wrong": 0}] == list(most.verdict().values())


BESIDE = {"engine.returned": 2, "engine.completed": 2, "engine.begun": 3, "engine.planned": 3}
"""What the engine passes while the second epoch's commit may still run beside it, and for the how manieth time."""
OVERLAPPED = [
    *sets(("box", "sqlite"), ("files",)),
    *(
        pytest.param((name,), marks=(pytest.mark.server, pytest.mark.long), id=name)
        for name in ("kafka", "kafka_tasks", "postgres", "mysql", "redis", "cassandra")
    ),
]


@pytest.mark.heavy
@pytest.mark.parametrize("targets", OVERLAPPED)
def test_a_kill_while_an_epoch_is_committed_beside_the_next_one_loses_and_doubles_nothing(
    tmp_path: Path, targets: tuple[str, ...]
) -> None:
    """The commit stands still at each of its points while the engine goes on to each of its own; then both die."""
    wrong = {}
    stops = [f"{point}=hang@{visit}" for point in ("commit.before", "commit.after") for visit in visits(len(targets))]
    for number, (stop, engine) in enumerate(product((*stops, "sweep.before=hang@2"), BESIDE)):
        scene = fresh(tmp_path, targets, number, keep=2, overlap=True)
        killed = scene.run(f"{stop},{engine}=kill@{BESIDE[engine]}")
        ended = scene.run()
        if killed != -signal.SIGKILL or ended != 0 or not scene.is_exact() or scene.leftovers():
            wrong[f"{stop}, {engine}"] = (killed, ended, scene.verdict(), scene.leftovers())
    assert {} == wrong


def visits(sinks: int) -> range:
    """Of a point that is passed once for each sink: those of the second epoch."""
    return range(sinks + 1, 2 * sinks + 1)


@pytest.mark.heavy
@pytest.mark.parametrize("targets", sets(("box", "sqlite"), ("postgres",)))
def test_a_driver_that_sleeps_beside_its_commit_is_fenced_and_changes_nothing(
    tmp_path: Path, targets: tuple[str, ...]
) -> None:
    wrong = {}
    points = ["overlap.begin.before", "engine.completed", "engine.planned", "overlap.join.before", "sweep.before"]
    stops = [*points, *(f"commit.before=stop@{visit}" for visit in visits(len(targets)))]
    for number, stop in enumerate(stops):
        scene = fresh(tmp_path, targets, number, overlap=True)
        sleeper = scene.start(stop if "=" in stop else f"{stop}=stop@2")
        assert wait_until_stopped(sleeper)
        second = scene.start()
        wait_for_takeover(scene, 1, stop)
        os.kill(sleeper, signal.SIGCONT)
        codes = (wait(sleeper), wait(second))
        if codes != (FENCED, 0) or not scene.is_exact():
            wrong[stop] = (codes, scene.verdict())
    assert {} == wrong
