"""Every way to a remote store keeps the same promises: Spark's Hadoop, boto3, WebHDFS, over real servers."""

from __future__ import annotations

import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from buckets import reach
from fencepost_proof.rig.process import until

from fencepost.spark.hadoop import HadoopRemote
from fencepost.store import Unanswered
from fencepost.store.base import Remote, RemoteStore, split, together
from fencepost.store.hdfs import ADDRESS, WebHdfsRemote, addresses
from fencepost.store.retry import at_most, patient
from fencepost.store.s3 import S3Remote

if TYPE_CHECKING:
    from fencepost_proof.rig.hdfs import Hdfs
    from fencepost_proof.rig.s3 import S3

RACES = 40
pytestmark = pytest.mark.server
WAYS = [
    "boto3",
    "webhdfs",
    pytest.param("s3a by Hadoop", marks=pytest.mark.spark),
    pytest.param("hdfs by Hadoop", marks=pytest.mark.spark),
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Remote, str]:
    """A way to a store, and a folder there that nobody else uses."""
    folder = f"{request.node.name.partition('[')[0][:60]}-{uuid.uuid4().hex[:8]}"
    if request.param in ("boto3", "s3a by Hadoop"):
        s3: S3 = request.getfixturevalue("s3")
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        if request.param == "boto3":
            return S3Remote(), f"{s3.make_bucket('bucket-' + uuid.uuid4().hex[:8])}/{folder}"
        spark = request.getfixturevalue("spark")
        bucket = reach(spark, s3)
        return HadoopRemote(spark.sparkContext), f"{bucket}/{folder}"
    hdfs: Hdfs = request.getfixturevalue("hdfs")
    monkeypatch.setenv(ADDRESS, hdfs.web)
    if request.param == "webhdfs":
        return WebHdfsRemote(), f"{hdfs.url}/{folder}"
    spark = request.getfixturevalue("spark")
    for name, value in hdfs.settings.items():
        spark.conf.set(name.removeprefix("spark.hadoop."), value)
    return HadoopRemote(spark.sparkContext), f"{hdfs.url}/{folder}"


@pytest.fixture
def remote(way: tuple[Remote, str]) -> Remote:
    return way[0]


@pytest.fixture
def there(way: tuple[Remote, str]) -> str:
    return way[1]


def test_of_two_that_create_a_name_at_once_one_wins_and_its_bytes_are_there(remote: Remote, there: str) -> None:
    names = [f"{there}/ledger/{number}.json" for number in range(RACES)]
    starts = {name: threading.Barrier(2) for name in names}

    def race(racer: tuple[str, bytes]) -> bool:
        name, me = racer
        starts[name].wait(60)
        return remote.create(name, me)

    with ThreadPoolExecutor(8) as pool:  # four pairs at a time
        won = list(pool.map(race, [(name, me) for name in names for me in (b"left", b"right")]))
    left, right = won[::2], won[1::2]
    assert [True] * RACES == [one != other for one, other in zip(left, right, strict=True)]
    assert [b"left" if one else b"right" for one in left] == together(remote.read, names)
    assert RACES == len(remote.list(f"{there}/ledger"))  # no temporary file is left


def test_what_is_not_there_is_nothing_to_every_question(remote: Remote, there: str, tmp_path: Path) -> None:
    gone = f"{there}/no/such"
    assert (None, None, [], []) == (
        remote.read(gone),
        remote.look(gone),
        list(remote.list(gone)),
        list(remote.below(gone)),
    )
    remote.delete(gone)
    with pytest.raises(FileNotFoundError):
        remote.fetch(gone, tmp_path / "none")


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "a%20b", "what?", "a#b", "a+b&c=d", "ümlaut"])
def test_a_name_is_what_it_says(name: str, remote: Remote, there: str, tmp_path: Path) -> None:
    url, data = f"{there}/{name}/{name}.json", name.encode()
    assert (True, False) == (remote.create(url, data), remote.create(url, b"other"))
    found = remote.look(url)
    assert found is not None
    assert (data, f"{name}.json", False, len(data)) == (remote.read(url), found.name, found.is_folder, found.size)
    assert [(name, True)] == [(one.name, one.is_folder) for one in remote.list(there)]
    assert [found] == list(remote.list(f"{there}/{name}"))
    assert [f"{name}/{name}.json"] == [one.name for one in remote.below(there)]
    remote.fetch(url, tmp_path / "copy")
    assert data == (tmp_path / "copy").read_bytes()


def test_a_file_that_was_replaced_is_whole_and_is_told_apart(remote: Remote, there: str) -> None:
    url = f"{there}/metadata"
    remote.replace(url, b"first")
    first = remote.look(url)
    remote.replace(url, b"")
    second = remote.look(url)
    assert first is not None
    assert second is not None
    assert first.stamp != second.stamp
    assert (b"", 0) == (remote.read(url), second.size)
    assert 0 <= second.changed_s - first.changed_s < 60
    assert ["metadata"] == [found.name for found in remote.list(there)]


def test_a_large_file_is_sent_and_fetched_as_it_is(remote: Remote, there: str, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(data := os.urandom(20_000_000))
    remote.send(tmp_path / "sent", f"{there}/state/0/1.zip")
    remote.fetch(f"{there}/state/0/1.zip", tmp_path / "fetched")
    assert data == (tmp_path / "fetched").read_bytes()


def test_a_file_is_no_folder_and_a_folder_no_file(remote: Remote, there: str) -> None:
    remote.replace(f"{there}/a/b", b"b")
    found = remote.look(f"{there}/a")
    assert found is not None
    assert (True, "a") == (found.is_folder, found.name)
    assert ([], []) == (list(remote.list(f"{there}/a/b")), list(remote.below(f"{there}/a/b")))


@pytest.mark.parametrize(
    "way",
    [
        "boto3",
        pytest.param("webhdfs", marks=pytest.mark.long),
        pytest.param("s3a by Hadoop", marks=[pytest.mark.spark, pytest.mark.long]),
        pytest.param("hdfs by Hadoop", marks=[pytest.mark.spark, pytest.mark.long]),
    ],
    indirect=True,
)
def test_a_folder_of_more_names_than_one_answer_holds_is_listed_and_deleted_whole(remote: Remote, there: str) -> None:
    names = sorted(f"{number}" for number in range(1100))
    if there.startswith("s3a:"):
        together(lambda name: remote.replace(f"{there}/many/{name}", b""), names)
    else:  # folders, for a file takes HDFS many times as long
        store, path = split(there)
        [web] = addresses(store)
        with requests.Session() as session:
            for name in names:
                session.put(f"{web}/webhdfs/v1/{path}/many/{name}?op=MKDIRS", timeout=30).raise_for_status()
    remote.replace(f"{there}/many-others", b"")
    assert names == [found.name for found in remote.list(f"{there}/many")]
    files = [f"many/{name}" for name in names] if there.startswith("s3a:") else []
    assert ["many-others", *files] == [found.name for found in remote.below(there)]
    remote.delete(f"{there}/many")
    assert ["many-others"] == [found.name for found in remote.list(there)]


def test_a_store_of_it_keeps_the_promises_of_every_store(remote: Remote, there: str) -> None:
    store = RemoteStore(there, patient(remote))
    assert (True, False) == (store.create("ledger/1.json", b"1"), store.create("ledger/1.json", b"2"))
    store.expect(["ledger/1.json", "ledger/2.json"])
    assert (b"1", None) == (store.read("ledger/1.json"), store.read("ledger/2.json"))
    assert (("1.json",), ()) == (store.list("ledger"), store.list("nothing"))
    store.delete("")
    assert None is store.read("ledger/1.json")


def test_a_store_that_nobody_answers_for_is_unanswered_and_not_waited_for_longer_than_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv(ADDRESS, "127.0.0.1:9")
    for remote, url in ((S3Remote(), "s3a://bucket/orders"), (WebHdfsRemote(), "hdfs://namenode/orders")):
        with at_most(0.2), pytest.raises(Unanswered):
            patient(remote).read(url)
        with pytest.raises(Unanswered):
            remote.create(url, b"")


def test_credentials_that_are_missing_are_a_refusal_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(PermissionError):
        patient(S3Remote()).read("s3a://bucket/orders")


def test_name_nodes_are_found_by_hadoops_own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert ["http://node-1:9870"] == addresses("node-1:8020")
    _site(
        tmp_path,
        {
            "dfs.ha.namenodes.east": "a, b",
            "dfs.namenode.http-address.east.a": "node-a:9870",
            "dfs.namenode.http-address.east.b": "node-b:9871",
            "dfs.namenode.http-address": "0.0.0.0:9872",
        },
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert ["http://node-a:9870", "http://node-b:9871"] == addresses("east")
    assert ["http://node-1:9872"] == addresses("node-1:8020")
    monkeypatch.setenv(ADDRESS, "https://gateway:14000/, node-2:9870")
    assert ["https://gateway:14000", "http://node-2:9870"] == addresses("east")


def _site(folder: Path, settings: dict[str, str]) -> None:
    found = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
    (folder / "hdfs-site.xml").write_text(f"<configuration>{found}</configuration>")


def test_a_name_node_that_is_gone_is_passed_over(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, f"127.0.0.1:9,{hdfs.web}")
    assert None is WebHdfsRemote().read(f"{hdfs.url}/no/such")


@pytest.mark.long  # a DataNode renews what it tells of itself every ten seconds
def test_what_is_written_by_web_is_on_the_disk_before_it_has_its_name(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS, hdfs.web)
    time.sleep(12)
    before = _syncs(hdfs)
    assert WebHdfsRemote().create(f"{hdfs.url}/durable-{uuid.uuid4().hex}", b"1")
    until(lambda: _syncs(hdfs) > before, "a block was synced")


def _syncs(hdfs: Hdfs) -> int:
    found: dict[str, Any] = hdfs.data_node.ask("Hadoop:service=DataNode,name=DataNodeActivity*") or {}
    return int(found["FsyncNanosNumOps"])
