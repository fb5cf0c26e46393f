"""The rig's HDFS, S3 and Spark cluster are real ones: they keep what they acknowledged, and workers are elsewhere."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.process import until
from fencepost_proof.rig.s3 import S3, Endpoint
from fencepost_proof.rig.s3_door import EXPIRED_TOKEN, SLOW_DOWN, Request, S3Door
from fencepost_proof.rig.server import state
from fencepost_proof.rig.standalone import Standalone, descendants

RACERS, RACES = 4, 15


def ask(url: str, method: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """One request, following the one redirect that WebHDFS sends to a DataNode."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"{parts.path}?{parts.query}".rstrip("?"), body=body, headers=named)
        answer = connection.getresponse()
        found = answer.read()
    finally:
        connection.close()
    if answer.status == 307:
        return ask(answer.headers["Location"], method, body, **headers)
    return answer.status, found


def web(hdfs: Hdfs, name: str, operation: str) -> str:
    return f"{hdfs.web}/webhdfs/v1/{name}?op={operation}&user.name=test"


def test_hdfs_keeps_a_closed_file_through_a_kill_of_either_node(hdfs: Hdfs) -> None:
    name = uuid.uuid4().hex
    assert 201 == ask(web(hdfs, name, "CREATE&overwrite=false"), "PUT", b"kept")[0]
    before = hdfs.url
    hdfs.data_node.kill()
    assert 200 == ask(web(hdfs, name, "GETFILESTATUS"), "GET")[0]
    with pytest.raises(ConnectionRefusedError):
        ask(web(hdfs, name, "OPEN"), "GET")
    hdfs.name_node.kill()
    with pytest.raises(ConnectionRefusedError):
        ask(web(hdfs, name, "GETFILESTATUS"), "GET")
    hdfs.start()
    assert before == hdfs.url
    assert (200, b"kept") == ask(web(hdfs, name, "OPEN"), "GET")
    assert 403 == ask(web(hdfs, name, "CREATE&overwrite=false"), "PUT", b"other")[0]


@pytest.fixture
def bucket(s3: S3) -> str:
    made = f"bucket-{uuid.uuid4().hex[:8]}"
    assert f"s3a://{made}" == s3.make_bucket(made)
    return made


@pytest.fixture
def door(s3: S3) -> Iterator[S3Door]:
    with S3Door(s3.endpoint) as made:
        yield made


def test_s3_keeps_objects_and_refuses_taken_names_after_a_kill(s3: S3, bucket: str) -> None:
    key = f"{s3.endpoint}/{bucket}/some/key"
    assert 200 == ask(key, "PUT", b"kept", If_None_Match="*")[0]
    s3.kill()
    with pytest.raises(ConnectionRefusedError):
        ask(key, "GET")
    s3.start()
    assert (200, b"kept") == ask(key, "GET")
    assert 412 == ask(key, "PUT", b"other", If_None_Match="*")[0]
    assert (200, b"kept") == ask(key, "GET")


def winners(store: Endpoint, key: str) -> int:
    """How many clients are told that they made an object: all send all of it but a byte, then the last one at once."""
    address = urlsplit(store.endpoint)
    begin = f"PUT {key} HTTP/1.1\r\nHost: {address.netloc}\r\nIf-None-Match: *\r\nContent-Length: 2\r\n\r\n."
    racers = [socket.create_connection((address.hostname, address.port), timeout=20) for _ in range(RACERS)]
    start = threading.Barrier(RACERS)
    answers: list[int] = []

    def race(racer: socket.socket) -> None:
        racer.sendall(begin.encode())
        start.wait(20)
        racer.sendall(b".")
        answer = http.client.HTTPResponse(racer)
        answer.begin()
        answers.append(answer.status)
        answer.close()

    threads = [threading.Thread(target=race, args=(racer,)) for racer in racers]
    for thread in threads:
        thread.start()
    for thread, racer in zip(threads, racers, strict=True):
        thread.join()
        racer.close()
    assert RACERS == len(answers)
    assert set(answers) <= {200, 412}
    return answers.count(200)


def test_a_name_on_s3_has_one_winner(s3: S3, bucket: str) -> None:
    assert {1: RACES} == Counter(winners(s3, f"/{bucket}/{race}") for race in range(RACES))


def test_a_store_that_ignores_the_condition_has_many_winners(s3: S3, bucket: str, door: S3Door) -> None:
    assert 1 == winners(door, f"/{bucket}/honest")
    door.ignore_conditions()
    assert RACERS == winners(door, f"/{bucket}/ignored")
    door.behave()
    assert 0 == winners(door, f"/{bucket}/ignored")


def test_the_door_counts_what_goes_through_it_by_kind(bucket: str, door: S3Door) -> None:
    key = f"{door.endpoint}/{bucket}/a"
    assert 200 == ask(key, "PUT", b"x")[0]
    assert 412 == ask(key, "PUT", b"y", If_None_Match="*")[0]
    assert 200 == ask(f"{key}2", "PUT", b"", x_amz_copy_source=f"/{bucket}/a")[0]
    assert (200, b"") == ask(key, "HEAD")
    assert (200, b"x") == ask(key, "GET")
    assert b"<Key>a2</Key>" in ask(f"{door.endpoint}/{bucket}?list-type=2", "GET")[1]
    assert 204 == ask(key, "DELETE")[0]
    assert 404 == ask(key, "HEAD")[0]
    each = dict.fromkeys(("PUT", "CONDITIONAL PUT", "COPY", "GET", "LIST", "DELETE"), 1)
    assert {**each, "HEAD": 2} == door.reset()
    assert {} == door.count()


def test_the_door_answers_in_the_place_of_the_server_as_often_as_told(s3: S3, bucket: str, door: S3Door) -> None:
    key = f"/{bucket}/a"
    door.answer(SLOW_DOWN, when=lambda request: request.key == "a", times=2)
    for _ in range(2):
        status, said = ask(f"{door.endpoint}{key}", "PUT", b"x")
        assert (503, True) == (status, b"<Code>SlowDown</Code>" in said)
    assert 404 == ask(f"{s3.endpoint}{key}", "HEAD")[0]
    assert 200 == ask(f"{door.endpoint}{key}", "PUT", b"x")[0]
    door.answer(EXPIRED_TOKEN)
    assert 403 == ask(f"{door.endpoint}{key}", "GET")[0]
    door.behave()
    assert (200, b"x") == ask(f"{door.endpoint}{key}", "GET")


def test_a_lost_answer_is_that_of_a_request_that_was_done(s3: S3, bucket: str, door: S3Door) -> None:
    key = f"/{bucket}/a"
    door.lose_answer(when=lambda request: request.kind == "CONDITIONAL PUT")
    with pytest.raises(http.client.RemoteDisconnected):
        ask(f"{door.endpoint}{key}", "PUT", b"mine", If_None_Match="*")
    assert (200, b"mine") == ask(f"{s3.endpoint}{key}", "GET")
    assert 412 == ask(f"{door.endpoint}{key}", "PUT", b"mine", If_None_Match="*")[0]
    assert 1 == door.lost


def test_a_body_of_unknown_length_goes_through_the_door(s3: S3, bucket: str, door: S3Door) -> None:
    connection = http.client.HTTPConnection(urlsplit(door.endpoint).netloc, timeout=20)
    try:
        connection.request("PUT", f"/{bucket}/a", body=iter([b"one ", b"two"]), encode_chunked=True)
        assert 200 == connection.getresponse().status
    finally:
        connection.close()
    assert (200, b"one two") == ask(f"{s3.endpoint}/{bucket}/a", "GET")


@pytest.mark.parametrize(
    ("method", "path", "headers", "kind"),
    [
        ("GET", "/b", {}, "LIST"),
        ("GET", "/b/?prefix=a/b", {}, "LIST"),
        ("GET", "/b/a?partNumber=1", {}, "GET"),
        ("PUT", "/b/a?uploadId=1&partNumber=1", {}, "PUT"),
        ("PUT", "/b/a", {"if-match": '"x"'}, "CONDITIONAL PUT"),
        ("POST", "/b?delete", {}, "POST"),
    ],
)
def test_kinds_are_those_that_a_store_charges_for(method: str, path: str, headers: dict[str, str], kind: str) -> None:
    assert kind == Request(method, path, headers).kind


JOB = """
import json, os, socket, sys
from pyspark import SparkConf, SparkContext

settings, hidden, there = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = SparkContext(conf=SparkConf().setAppName("apart").setAll(settings.items()))

def look(_):
    import time
    time.sleep(0.5)  # so that both executors get some
    return socket.gethostname(), os.path.exists(hidden), os.path.exists(there)

seen = sorted(set(spark.parallelize(range(4), 4).map(look).collect()))
print(json.dumps(seen), flush=True)
sys.stdin.readline()
"""


def test_executors_on_workers_apart_see_none_of_the_drivers_folders(standalone: Standalone, tmp_path: Path) -> None:
    hidden = tmp_path / "only-on-the-driver"
    hidden.write_text("x")
    quick = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    settings = {**standalone.settings, **quick}
    driver = subprocess.Popen(
        [sys.executable, "-c", JOB, json.dumps(settings), str(hidden), __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert driver.stdout is not None
    with driver.stdout, driver:
        try:
            said = driver.stdout.readline()
            executors, python = standalone.executors(), standalone.python_workers()
            assert [["worker-0.test", False, True], ["worker-1.test", False, True]] == json.loads(said)
            assert 2 == len(executors)
            assert set(python) <= set(descendants(executors))
            assert len(python) >= 4  # a daemon and a worker of each
            first, second = standalone.workers
            [killed], [orphan] = first.executors(), second.executors()
            os.kill(killed, signal.SIGKILL)
            second.kill()
            until(lambda: state(killed) == state(orphan) == "Z", "the one was dead and the other followed its worker")
            until(lambda: len(first.executors()) == 1, "another one was started")
            master = standalone.master.pid
            standalone.start()
            assert master == standalone.master.pid
            assert standalone.master.knows(second.port)
        finally:
            driver.kill()
    until(lambda: not standalone.executors(), "the executors of a driver that is gone had gone")


def test_a_folder_is_hidden_from_workers_that_are_apart_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="apart"):
        Standalone(tmp_path / "cluster", hides=[tmp_path / "other"])
    with pytest.raises(ValueError, match="cluster itself"):
        Standalone(tmp_path / "cluster", apart=True, hides=[tmp_path])
