"""Which servers are refused, what a user needs to be allowed, and what is never said aloud."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fencepost import Redis
from fencepost.errors import BadConfig, EpochFailed, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.prove.rig.certificate import write_certificate
from fencepost.prove.rig.process import free_ports
from fencepost.prove.rig.redis import Redis as Server
from fencepost.sinks.redis.server import rights
from fencepost.testing import Driver

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})
SECRET = "canary-s3cret"  # noqa: S105

RIGHTS = rights(Redis("redis://localhost", key="k", prefix="words:").layout)


def words(url: str, **settings: Any) -> Redis:
    return Redis(url, **{"key": "k", "prefix": "words:", "name": "words"} | settings)


def started(sink: Redis, folder: Path, table: pa.Table = TABLE, **owner: Any) -> Driver:
    driver = Driver(sink, folder, **owner)
    driver.start(table.schema)
    return driver


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("appendfsync everysec", "appendfsync always"),
        ("appendfsync no", "appendfsync always"),
        ("no-appendfsync-on-rewrite yes", "no-appendfsync-on-rewrite no"),
        ("appendonly no", "appendonly yes"),
        ("maxmemory-policy allkeys-lru", "maxmemory-policy noeviction"),
    ],
)
def test_a_server_that_may_forget_is_refused_with_the_cure(
    tmp_path: Path, server: Server, reader: Any, bad: str, good: str
) -> None:
    server.cli("CONFIG", "SET", *bad.split())
    try:
        with pytest.raises(TargetRefused) as refused:
            started(words(server.url), tmp_path)
        assert "target_forgets" == refused.value.code
        assert f"CONFIG SET {good}, then CONFIG REWRITE" in refused.value.next
        assert [] == reader.keys()
        for durable in (True, False):
            driver = started(words(server.url, durable=durable), tmp_path)
            driver.session.write(Epoch(0), driver.rows(0, TABLE))
            driver.session.close()
        assert b"2" == reader.hget("words:b", "v")
    finally:
        server.cli("CONFIG", "SET", *good.split())


def test_who_says_that_rows_may_be_lost_gets_at_least_once_and_a_note() -> None:
    lossy = words("redis://localhost", durable=False).capabilities
    assert not lossy.repeatable
    assert "durable=False" in lossy.note
    assert words("redis://localhost", durable=True).capabilities.repeatable
    assert words("redis://localhost").capabilities.repeatable


def test_evicting_only_keys_that_expire_is_fine(tmp_path: Path, server: Server, reader: Any) -> None:
    reader.config_set("maxmemory-policy", "volatile-lru")
    started(words(server.url), tmp_path).session.close()


def test_a_user_who_may_not_ask_is_refused_unless_he_vouches(tmp_path: Path, server: Server) -> None:
    url = as_user(server, RIGHTS.replace("+config|get", ""))
    with pytest.raises(TargetRefused) as refused:
        started(words(url), tmp_path)
    assert "target_forgets" == refused.value.code
    assert "+config|get" in refused.value.next
    driver = started(words(url, durable=True), tmp_path)
    driver.run(0, TABLE)
    driver.session.close()


def test_a_server_that_came_back_with_other_settings_is_not_written_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(tmp_path / "server") as server:
        driver = started(words(server.url), tmp_path)
        driver.run(0, TABLE)
        handle = driver.pre_commit(1, TABLE)
        driver.vote(1, handle)
        server.cli("CONFIG", "SET", "appendfsync", "no")
        server.cli("CLIENT", "KILL", "TYPE", "normal")
        assert Outcome.IN_DOUBT == driver.commit(1, handle)
        assert Outcome.IN_DOUBT == driver.commit(1, handle)
        assert "appendfsync is no" in caplog.text
        server.cli("CONFIG", "SET", "appendfsync", "always")
        assert Outcome.DONE == driver.commit(1, handle)
        driver.session.close()


def test_an_emptied_server_is_not_taken_for_ours(tmp_path: Path, server: Server) -> None:
    driver = started(words(server.url), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    driver.vote(0, handle)
    server.cli("FLUSHALL")
    server.cli("CLIENT", "KILL", "TYPE", "normal")
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    assert "" == server.cli("KEYS", "words:*")
    driver.session.close()


def test_a_replica_takes_no_rows(tmp_path: Path, server: Server, reader: Any) -> None:
    of_it = {"replicaof": f"127.0.0.1 {server.port}"}
    with Server(tmp_path / "replica", settings=of_it) as replica, pytest.raises(Retryable, match="replica"):
        started(words(replica.url), tmp_path)
    driver = started(words(server.url), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    reader.config_set("min-replicas-to-write", 1)
    with pytest.raises(EpochFailed, match="replicas"):
        driver.vote(0, handle)
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    reader.config_set("min-replicas-to-write", 0)
    driver.run(0, TABLE)
    driver.session.close()


def test_a_full_memory_fails_the_vote(tmp_path: Path, server: Server, reader: Any) -> None:
    driver = started(words(server.url), tmp_path)
    reader.config_set("maxmemory", 1)
    with pytest.raises(EpochFailed, match="memory is full"):
        driver.vote(0, driver.pre_commit(0, TABLE))
    reader.config_set("maxmemory", 0)
    driver.run(0, TABLE)
    driver.session.close()


def test_in_a_cluster_the_keys_need_a_tag_and_are_written_where_their_slot_is(tmp_path: Path) -> None:
    settings = {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"}
    with Server(tmp_path / "one", settings=settings) as one, Server(tmp_path / "two", settings=settings) as two:
        slot = int(one.cli("CLUSTER", "KEYSLOT", "w"))
        one.cli("CLUSTER", "ADDSLOTSRANGE", "0", str(slot - 1), str(slot + 1), "16383")
        two.cli("CLUSTER", "ADDSLOTSRANGE", str(slot), str(slot))
        one.cli("CLUSTER", "MEET", "127.0.0.1", str(two.port))
        until_whole([one, two])
        with pytest.raises(TargetRefused, match="hash tag"):
            started(words(one.url), tmp_path)
        driver = started(words(one.url, prefix="{w}:"), tmp_path)
        driver.run(0, TABLE)
        driver.run(1, TABLE)
        driver.session.close()
        assert "2" == two.cli("HGET", "{w}:b", "v")
        assert {"{w}:a", "{w}:b", "{w}:fencepost:target", "{w}:fencepost:mark:job:words"} == {
            *two.cli("KEYS", "*").split()
        }


def until_whole(servers: list[Server]) -> None:
    end = time.monotonic() + 20
    while any("cluster_state:ok" not in one.cli("CLUSTER", "INFO") for one in servers):
        assert time.monotonic() < end
        time.sleep(0.05)


def as_user(server: Server, rights: str) -> str:
    server.cli("ACL", "SETUSER", "app", "reset", "on", f">{SECRET}", *rights.split())
    return server.url.replace("redis://", f"redis://app:{SECRET}@")


@pytest.mark.parametrize("shape", ["hash", "string", "json", "counter", "sorted_set"])
def test_few_rights_are_enough(tmp_path: Path, server: Server, reader: Any, shape: str) -> None:
    columns: dict[str, Any] = {"member": "k", "score": "v", "key": ()} if shape == "sorted_set" else {}
    needed = rights(words(server.url, shape=shape, **columns).layout)
    driver = started(words(as_user(server, needed), shape=shape, **columns), tmp_path)
    driver.run(0, TABLE)
    driver.run(1, TABLE)
    driver.session.close()


@pytest.mark.parametrize("missing", ["+hdel", "+hset", "+hlen", "~words:*", "+eval"])
def test_a_missing_right_fails_the_vote_and_leaves_no_half(
    tmp_path: Path, server: Server, reader: Any, missing: str
) -> None:
    url = as_user(server, RIGHTS)
    table = pa.table({"k": ["a", "b", "c"], "v": [1, None, 3]})
    driver = started(words(url), tmp_path, table)
    fewer = RIGHTS.replace(f" {missing}", "")
    as_user(server, fewer)
    handle = driver.pre_commit(0, table)
    with pytest.raises(EpochFailed, match="rights") as failed:
        driver.vote(0, handle)
    assert "target_silent" == failed.value.code
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    assert [] == reader.keys("words:*")
    as_user(server, RIGHTS)
    assert Outcome.DONE == driver.commit(0, handle)
    assert {b"words:a", b"words:c"} == {*reader.keys("words:*")}
    driver.session.close()


def test_a_wrong_password_is_refused_and_never_shown(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    as_user(server, RIGHTS)
    said = []
    for url in (
        f"redis://app:{SECRET}x@127.0.0.1:{server.port}/0",
        f"redis://app:{SECRET}@127.0.0.1:1/0",
        f"redis://app:{SECRET}@[127.0.0.1:1/0",
        f"redis://app:{SECRET}@127.0.0.1:{server.port}/{SECRET}",
        f"redis://127.0.0.1:{server.port}/0?password={SECRET}",
        f"rediss://app:{SECRET}@127.0.0.1:{server.port}/0?ssl_ca_certs=/{SECRET}",
        f"http://{SECRET}@127.0.0.1",
    ):
        with pytest.raises((TargetRefused, Retryable, BadConfig)) as refused:
            started(words(url, timeout=2), tmp_path)
        said.append(str(refused.value) + repr(refused.value))
    assert "+eval" in said[0]
    sink = words(f"redis://app:{SECRET}@127.0.0.1:{server.port}/0")
    driver = started(sink, tmp_path)
    handle = driver.run(0, TABLE)
    server.cli("ACL", "DELUSER", "app")
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    driver.session.close()
    shown = [*said, repr(sink), str(sink), repr(driver.session), repr(handle), caplog.text, *capfd.readouterr()]
    assert f"redis://127.0.0.1:{server.port}/0" in repr(sink)
    assert [] == [text for text in shown if SECRET in text]


def test_a_server_that_is_not_there_can_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(Retryable) as silent:
        started(words("redis://127.0.0.1:1"), tmp_path)
    assert "target_silent" == silent.value.code


def test_two_databases_of_a_server_are_two_targets(tmp_path: Path, server: Server) -> None:
    urls = [server.url, server.url.removesuffix("0") + "1", server.url]
    identities = []
    for url in urls:
        driver = Driver(words(url), tmp_path)
        identities.append(driver.start(TABLE.schema))
        driver.session.close()
    assert identities[0] == identities[2] != identities[1]


def test_other_keys_are_another_target(tmp_path: Path, server: Server) -> None:
    sinks = [words(server.url), words(server.url, prefix="w:"), words(server.url, shape="string")]
    identities = set()
    for sink in sinks:
        driver = Driver(sink, tmp_path)
        identities.add(driver.start(TABLE.schema))
        driver.session.close()
    assert 3 == len(identities)


def test_without_its_client_the_sink_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "import fencepost as fp\n"
        "sink = fp.Redis('redis://localhost', key='k')\n"
        "try: sink.session('job')\n"
        "except fp.Refused as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'fencepost[redis]'" in said


def test_over_tls_the_server_must_be_the_one_of_the_certificate(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    [port] = free_ports(1)
    settings = {"tls-port": str(port), "tls-cert-file": str(certificate), "tls-key-file": str(key)}
    settings |= {"tls-ca-cert-file": str(certificate), "tls-auth-clients": "no"}
    with Server(tmp_path / "server", settings=settings) as server:
        driver = started(words(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"), tmp_path)
        driver.run(0, TABLE)
        driver.session.close()
        assert "2" == server.cli("HGET", "words:b", "v")
        with pytest.raises(Retryable, match="cannot be reached"):
            started(words(f"rediss://127.0.0.1:{port}/0"), tmp_path)
