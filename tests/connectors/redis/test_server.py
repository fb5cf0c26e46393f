"""Which servers are refused, what a user needs to be allowed, and what is never said aloud."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.certificate import write_certificate
from fencepost_proof.rig.process import free_ports
from fencepost_proof.rig.redis import Redis as Server

from fencepost import Redis
from fencepost.connectors.redis.server import rights
from fencepost.contract import Session
from fencepost.errors import BadConfig, EpochFailed, FencepostError, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle
from fencepost.testing import SinkDriver

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})
SECRET = "canary-s3cret"  # noqa: S105

RIGHTS = rights(Redis("redis://localhost", key="k", prefix="words:").layout)


def words(url: str, **settings: Any) -> Redis:
    return Redis(url, **{"key": "k", "prefix": "words:", "name": "words"} | settings)


def started(sink: Redis, folder: Path, table: pa.Table = TABLE, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
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


@pytest.mark.server
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


@pytest.mark.server
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
def test_a_missing_right_is_refused_by_the_vote_and_leaves_no_half(
    tmp_path: Path, server: Server, reader: Any, missing: str
) -> None:
    url = as_user(server, RIGHTS)
    table = pa.table({"k": ["a", "b", "c"], "v": [1, None, 3]})
    driver = started(words(url), tmp_path, table)
    fewer = RIGHTS.replace(f" {missing}", "")
    as_user(server, fewer)
    handle = driver.pre_commit(0, table)
    with pytest.raises(TargetRefused, match="permitted") as refused:
        driver.vote(0, handle)
    assert "target_unusable" == refused.value.code
    assert 0 == refused.value.where.epoch
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


def everywhere(sink: Redis, running: SinkDriver, handle: Handle) -> dict[str, tuple[type[FencepostError], str]]:
    """What every way to the server says: a start, `fencepost check`, a session that opens, a vote."""

    def said(ask: Callable[[Session], object]) -> tuple[type[FencepostError], str]:
        session = sink.session("job")
        with pytest.raises(FencepostError) as error:
            ask(session)
        session.close()
        assert sink.at in error.value.what, "it does not say which server"
        assert SECRET not in str(error.value)
        return type(error.value), error.value.code

    return {
        "start": said(lambda session: session.preflight(TABLE.schema, "append")),
        "check": said(lambda session: session.rehearse(TABLE.schema, "append")),
        "open": said(lambda session: session.open(running.owner)),
        "vote": said(lambda _: running.vote(1, handle)),
    }


def test_a_wrong_password_is_refused_everywhere_and_a_server_that_is_down_is_waited_for(tmp_path: Path) -> None:
    with Server(tmp_path / "server") as server:
        server.cli("CONFIG", "SET", "requirepass", SECRET)
        sink = words(server.url.replace("redis://", f"redis://:{SECRET}@"))
        driver = started(sink, tmp_path)
        handle = driver.pre_commit(1, TABLE)
        admin = ("-a", SECRET)
        server.cli(*admin, "CONFIG", "SET", "requirepass", f"{SECRET}-new")
        admin = ("-a", f"{SECRET}-new")
        server.cli(*admin, "CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(EpochFailed):  # its connection ended, which says nothing of the password
            driver.vote(1, handle)

        refused = dict.fromkeys(("start", "check", "open", "vote"), (TargetRefused, "target_unusable"))
        assert refused == everywhere(sink, driver, handle)
        for other in ("", ":wrong@", "nobody:wrong@"):
            assert refused == everywhere(words(server.url.replace("redis://", f"redis://{other}")), driver, handle)
        assert "it cannot be used: it refused the login (AuthenticationError)" == driver.look({1: handle}).why

        server.cli(*admin, "CONFIG", "SET", "requirepass", SECRET)
        assert () == driver.vote(1, handle)
        server.kill()
        silent = dict.fromkeys(("start", "check", "open"), (Retryable, "target_silent"))
        assert silent | {"vote": (EpochFailed, "target_silent")} == everywhere(sink, driver, handle)
        assert "it cannot be reached (ConnectionError)" == driver.look({1: handle}).why
        driver.session.close()


def test_a_database_that_the_server_does_not_have_is_refused(tmp_path: Path, server: Server) -> None:
    with pytest.raises(TargetRefused, match="not have a database with the number"):
        started(words(server.url.removesuffix("/0") + "/99"), tmp_path)


def test_a_server_that_is_not_there_can_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(Retryable) as silent:
        started(words("redis://127.0.0.1:1"), tmp_path)
    assert ("target_silent", True) == (silent.value.code, "at 127.0.0.1:1 does not answer" in silent.value.what)


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("rediss://me:canary@cache/0", " at cache:6379"),
        ("redis://:canary@[::1]:7000", " at [::1]:7000"),
        ("env:REDIS_URL", " at secret:6380"),
        ("env:REDIS_GONE", ""),
    ],
)
def test_an_error_says_where_the_server_is_and_nothing_that_is_secret(
    url: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:canary@secret:6380")
    assert at == words(url).at


def test_two_databases_of_a_server_are_two_targets(tmp_path: Path, server: Server) -> None:
    urls = [server.url, server.url.removesuffix("0") + "1", server.url]
    identities = []
    for url in urls:
        driver = SinkDriver(words(url), tmp_path)
        identities.append(driver.start(TABLE.schema))
        driver.session.close()
    assert identities[0] == identities[2] != identities[1]


def test_other_keys_are_another_target(tmp_path: Path, server: Server) -> None:
    sinks = [words(server.url), words(server.url, prefix="w:"), words(server.url, shape="string")]
    identities = set()
    for sink in sinks:
        driver = SinkDriver(sink, tmp_path)
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


@pytest.mark.server
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
