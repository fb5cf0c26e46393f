"""Checkpoints and savepoints on a real HDFS and a real S3: all that can be done with one in a local folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import requests
from click.testing import CliRunner
from counted import Counted
from fencepost_proof.rig.s3 import S3
from killing import wait
from stateful import PARTITIONS, Stateful

from fencepost import faults
from fencepost.admin import folder, savepoint
from fencepost.admin.doctor import diagnose, repair
from fencepost.admin.rescale import rescale
from fencepost.admin.restore import restore, rewind
from fencepost.admin.savepoint import create, delete, verify
from fencepost.admin.state import look
from fencepost.admin.verify import compare
from fencepost.cli.main import cli
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import BadConfig, CheckpointRefused
from fencepost.store import Place, RemotePath, parts, store_at, way
from fencepost.store import path as store_path
from fencepost.store.base import STALE_S, Unanswered
from fencepost.store.ledger import read
from fencepost.store.parts import check_newest, not_whole, parts_of, schema_paths
from fencepost.store.retry import patient
from fencepost.store.savepoints import find

pytestmark = pytest.mark.server
HDFS = pytest.param("hdfs", marks=pytest.mark.long)
"""WebHDFS asks the NameNode and then the DataNode for each file: the same tests take three times as long."""
ON_HDFS = pytest.mark.parametrize("store", ["hdfs"], indirect=True)
ON_S3 = pytest.mark.parametrize("store", ["s3a"], indirect=True)
"""Where the store makes no difference, one of them: time is short."""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local checkpoint of four epochs, not to be changed."""
    folder = tmp_path_factory.mktemp("grown")
    small = Stateful(folder, {"db": SQLite(folder / "out.db", table="rows", name="db")})
    small.run(4)
    assert small.verify().verdict == "agrees"
    return small.checkpoint


@pytest.fixture(params=[HDFS, "s3a"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The real one, reached without Spark even where another test left a session."""
    if request.param == "hdfs":
        monkeypatch.setenv("FENCEPOST_WEBHDFS", request.getfixturevalue("hdfs").web)
    else:
        for name, value in request.getfixturevalue("s3").environment.items():
            monkeypatch.setenv(name, value)
    counted = Counted(store_path._client.__wrapped__(request.param))
    monkeypatch.setattr(store_path, "remote_for", lambda _: counted)
    monkeypatch.setattr(savepoint, "PAUSE_S", 0)
    monkeypatch.setattr("fencepost.admin.verify.PAUSE_S", 0)
    return counted


@pytest.fixture(scope="module")
def bucket(s3: S3) -> str:
    return s3.make_bucket(f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def far(request: pytest.FixtureRequest, store: Counted) -> RemotePath:
    """A place of its own for every test."""
    if request.node.callspec.params["store"] == "hdfs":
        return RemotePath(f"{request.getfixturevalue('hdfs').url}/{uuid.uuid4().hex}")
    return RemotePath(request.getfixturevalue("bucket")) / uuid.uuid4().hex


@pytest.fixture
def orders(grown: Path, far: RemotePath, store: Counted) -> RemotePath:
    """The checkpoint as a job on that store would have written it: Hadoop's own sums are for local disks only."""
    files = [file for file in grown.rglob("*") if file.is_file() and not file.name.startswith(".")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: (far / "orders" / way(file, grown)).send(file), files))
    store.asked.clear()
    return far / "orders"


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def state_file(root: Place, end: str) -> str:
    return min(part.name for part in parts_of(root, 3) if part.name.endswith(end) and part.kind == "state")


def schema_places(root: Place) -> list[str]:
    return schema_paths(root / "state" / "0" / "_metadata" / "v2" / "0")


def test_what_an_epoch_rests_on_is_found_with_few_questions(orders: RemotePath, grown: Path, store: Counted) -> None:
    state = read(orders)
    here = {part.name for part in parts_of(grown, 3)}
    store.asked.clear()
    there = {part.name for part in parts_of(orders, 3, state)}
    assert {name for name in here if "/." not in name} == there
    # One look at all names; then the bytes of three snapshots, which name their tables, and of what names the schemas.
    assert {"below": 1, "fetch": PARTITIONS, "read": 1} == dict(store.asked)


def test_a_whole_checkpoint_is_found_whole_and_a_damaged_file_is_named(orders: RemotePath) -> None:
    state = read(orders)
    check_newest(orders, state)
    assert ("agrees", True) == (compare(orders).verdict, diagnose(orders).is_whole)
    # Beside a table no sum is kept but on a local disk: its size is what is known of it.
    for end, harm in ((".zip", damaged), (".changelog", damaged), (".sst", lambda data: data[:-1])):
        name = state_file(orders, end)
        data = (orders / name).read_bytes()
        store_at(orders).replace(name, harm(data))
        found = compare(orders)
        assert ("differs", [name]) == (found.verdict, [one.place for one in found.findings])
        assert [name] == [one.name for one in diagnose(orders).findings]
        with pytest.raises(CheckpointRefused, match=name):
            check_newest(orders, state)
        store_at(orders).replace(name, data)


@ON_S3
def test_a_store_that_does_not_answer_is_not_taken_for_a_damaged_file(orders: RemotePath, store: Counted) -> None:
    state = read(orders)
    store.deaf.add(".changelog")
    with pytest.raises(Unanswered):
        check_newest(orders, state)


def test_a_savepoint_is_made_found_and_deleted_there(orders: RemotePath) -> None:
    made = create(orders, name="first")
    assert (orders.with_name("orders.savepoints") / "first", 3) == (made.path, made.epoch)
    assert ([made], []) == find(orders)
    assert [] == verify(made)
    assert {part.name for part in parts_of(orders, 3)} == set(made.files)
    with pytest.raises(BadConfig) as refused:
        create(orders, name="first")
    assert "savepoint_exists" == refused.value.code
    name = state_file(made.copy, ".changelog")
    data = (made.copy / name).read_bytes()
    store_at(made.copy).replace(name, damaged(data))
    store_at(made.copy).create("offsets/99", b"v1")
    assert {(name, "sum"), ("offsets/99", "extra")} == {(one.name, one.what) for one in verify(made)}
    delete(made)
    assert ([], []) == find(orders)
    assert not made.path.exists()


def test_of_makers_of_one_name_who_begin_at_once_one_wins(orders: RemotePath) -> None:
    together = Barrier(4)

    def attempt(name: str) -> str:
        together.wait()
        try:
            return create(orders, name=name).name
        except BadConfig as error:
            return error.code

    for name in ("one", "two", "three"):
        with ThreadPoolExecutor(4) as pool:
            ended = sorted(pool.map(attempt, [name] * 4), key="savepoint_exists".__eq__)
        assert [name, *["savepoint_exists"] * 3] == ended
    made, _ = find(orders)
    assert [[], [], []] == [verify(each) for each in made]


def test_an_answer_that_never_came_is_read_from_the_store(orders: RemotePath, far: RemotePath, store: Counted) -> None:
    store.silent |= {savepoint.BEGUN, savepoint.NAME, "/metadata"}
    made = create(orders, name="one")
    assert [] == verify(made)
    begun = restore(made, far / "anew", fate="again")
    assert (3, begun.lineage) == (begun.epoch, read(far / "anew").lineage_id)
    assert not (far / "anew" / savepoint.BEGUN).exists()


@pytest.mark.parametrize(("store", "point"), [("s3a", "copied_one"), ("s3a", "copied")], indirect=["store"])
def test_what_a_dead_maker_left_is_no_savepoint(point: str, orders: RemotePath) -> None:
    home = orders.with_name("orders.savepoints")
    in_a_child(lambda: create(orders, name="half"), f"savepoint.{point}=kill")
    assert ([], []) == find(orders)
    with pytest.raises(BadConfig) as refused:
        create(orders, name="half")
    assert "savepoint_exists" == refused.value.code
    said = CliRunner().invoke(cli, ["savepoint", "delete", str(home / "half"), "--yes"])
    assert (0, True) == (said.exit_code, "incomplete" in said.output)
    assert [] == verify(create(orders, name="half"))


@ON_S3
def test_a_maker_that_fails_removes_what_it_made(orders: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoint, "ATTEMPTS", 2)
    name = state_file(orders, ".changelog")
    store_at(orders).replace(name, b"torn")
    with pytest.raises(CheckpointRefused) as refused:
        create(orders, name="bad")
    assert "checkpoint_damaged" == refused.value.code
    assert not (orders.with_name("orders.savepoints") / "bad").exists()


def test_a_savepoint_goes_from_here_to_there_and_back(grown: Path, far: RemotePath, tmp_path: Path) -> None:
    """Each copy is a whole checkpoint, wherever it lies, and names its own place and no other."""
    there = create(grown, name="there", to=far / "kept")
    assert [] == verify(there)
    anew = restore(there, far / "anew", fate="overwrite").path
    assert anew == far / "anew"
    assert [f"{anew}/state/0/_stateSchema/default/0_schema"] == schema_places(anew)
    check_newest(anew, read(anew))
    here = create(anew, name="here", to=tmp_path)
    assert [] == verify(here)
    back = restore(here, tmp_path / "back", fork="second").path
    assert [f"file:{back}/state/0/_stateSchema/default/0_schema"] == schema_places(back)
    assert ("second", "agrees") == (read(back).lineage.job, compare(back).verdict)


@ON_S3
def test_tables_from_elsewhere_get_the_sums_that_a_local_disk_has(orders: RemotePath, tmp_path: Path) -> None:
    """Spark's next table will have one; one that has lost it must be told from one that never had."""
    back = restore(create(orders, to=tmp_path / "kept"), tmp_path / "back", fate="again").path
    tables = [part for part in parts_of(back, 3) if part.name.endswith(".sst")]
    assert PARTITIONS == len([part for part in tables if part.side])
    assert [] == not_whole(back, 3, read(back))
    (back / str(tables[0].side)).unlink()
    assert [(tables[0].name, "no_sum")] == [(one.name, one.what) for one in not_whole(back, 3, read(back))][-1:]


@ON_S3
def test_a_restore_that_died_is_refused_until_its_place_is_empty(orders: RemotePath, far: RemotePath) -> None:
    made, anew = create(orders), far / "anew"
    in_a_child(lambda: restore(made, anew, fate="again", parent=orders), "restore.copied=kill")
    assert read(orders).sealed is not None
    for _ in range(2):
        with pytest.raises(BadConfig) as refused:
            restore(made, anew, fate="again", parent=orders)
        assert "half_made" == refused.value.code
    folder.clear(anew)
    begun = restore(made, anew, fate="again", parent=orders)
    assert read(orders).sealed.next == begun.lineage == read(anew).lineage_id
    assert begun == restore(made, anew, fate="again", parent=orders), "it was repeated after its last step"
    with pytest.raises(BadConfig) as refused:
        restore(made, anew, fate="again")
    assert "place_taken" == refused.value.code


@ON_S3
def test_a_place_that_somebody_begins_on_meanwhile_is_left_to_him(
    orders: RemotePath, far: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, anew = create(orders), far / "anew"
    monkeypatch.setattr(faults, "reach", lambda point: point == "restore.copied" and begin(anew))
    with pytest.raises(BadConfig) as refused:
        restore(made, anew, fate="again")
    assert "place_taken" == refused.value.code
    assert b'{"id":"theirs"}' == (anew / "metadata").read_bytes()


def begin(anew: RemotePath) -> None:
    store_at(anew).create("metadata", b'{"id":"theirs"}')


@ON_HDFS
def test_a_checkpoint_there_is_rewound_in_place(orders: RemotePath) -> None:
    begun = rewind(orders, 2, "again")
    assert (2, begun.lineage) == (begun.epoch, read(orders).lineage_id)
    assert begun == rewind(orders, 2, "again")


@ON_S3
def test_a_file_is_put_back_from_a_savepoint(orders: RemotePath) -> None:
    create(orders, name="good")
    name = state_file(orders, ".changelog")
    data = (orders / name).read_bytes()
    store_at(orders).replace(name, damaged(data))
    found = diagnose(orders)
    assert [(name, "copy")] == [(one.name, one.fix) for one in found.findings]
    assert [name] == [one.name for one in repair(orders, found)]
    assert data == (orders / name).read_bytes()
    folder, _, last = name.rpartition("/")
    assert damaged(data) == (orders / folder / f".{last}.damaged").read_bytes()
    assert diagnose(orders).is_whole


@ON_S3
def test_the_state_is_listed_from_its_files(orders: RemotePath, grown: Path) -> None:
    there, here = look(orders), look(grown)
    assert here.epochs == there.epochs
    assert here.operators == there.operators
    assert PARTITIONS == len([size for size in there.operators[0].bytes if size])


@ON_S3
def test_a_state_there_is_not_repartitioned(orders: RemotePath) -> None:
    with pytest.raises(BadConfig) as refused:
        rescale(orders, PARTITIONS + 1, lambda: None)
    assert "local_only" == refused.value.code


@ON_HDFS
def test_every_command_takes_a_url(orders: RemotePath, far: RemotePath) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        said = CliRunner().invoke(cli, arguments)
        return said.exit_code, said.output

    assert (0, True) == (run("verify", str(orders))[0], diagnose(orders).is_whole)
    assert 0 == run("doctor", str(orders))[0]
    assert 0 == run("state", "ls", str(orders))[0]
    code, said = run("savepoint", "create", str(orders), "--name", "one", "--to", f"{far}/kept/")
    assert (0, f"{far}/kept/one") == (code, said.splitlines()[-1])
    assert f"{far}/kept/one" in run("savepoint", "list", f"{far}/kept")[1]
    assert 0 == run("savepoint", "verify", f"{far}/kept/one")[0]
    assert 0 == run("savepoint", "restore", f"{far}/kept/one", "--to", f"{far}/two", "--fork", "second")[0]
    with pytest.raises(BadConfig) as refused:
        CliRunner().invoke(cli, ["verify", "gs://bucket/orders"], catch_exceptions=False)
    assert "unknown_store" == refused.value.code


def test_old_temporary_files_are_swept_on_hdfs_by_its_own_clock(
    orders: RemotePath, request: pytest.FixtureRequest, store: Counted
) -> None:
    """On an object store Spark's files have no other name before."""
    young, old, named = ("commits/.4.{0}.tmp", "state/0/1/.8.delta.{0}.TID12.tmp", "offsets/0")
    young, old = (name.format(uuid.uuid4()) for name in (young, old))
    for name in (young, old):
        store_at(orders).replace(name, b"half")
    is_hdfs = orders.url.startswith("hdfs:")
    if is_hdfs:
        web = request.getfixturevalue("hdfs").web
        for name, seconds in ((old, 2 * STALE_S), (named, 3 * STALE_S)):
            changed = int(((orders / young).stat().st_mtime - seconds) * 1000)
            path = f"{web}/webhdfs/v1/{orders.url.split('/', 3)[3]}/{name}"
            requests.put(f"{path}?op=SETTIMES&modificationtime={changed}", timeout=10).raise_for_status()
    store.asked.clear()
    assert int(is_hdfs) == parts.sweep(orders)
    assert int(is_hdfs) == store.asked["below"]
    assert [True, not is_hdfs, True] == [(orders / name).exists() for name in (young, old, named)]


def in_a_child(do: Callable[[], object], fault: str) -> None:
    """With a way to the store of its own: it is killed."""
    if not (pid := os.fork()):
        known = store_path.remote_for("")
        assert isinstance(known, Counted)
        fresh = patient(type(known.remote)())
        store_path.remote_for = lambda _: fresh
        faults.arm({faults.ARM: fault})
        try:
            do()
        finally:
            os._exit(0)
    assert -9 == wait(pid)
