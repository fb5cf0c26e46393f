"""Secrets by reference: read when they are used, and never shown."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import fencepost as fp
from fencepost import credential
from fencepost.connectors.kafka.servers import Servers
from fencepost.errors import BadConfig

SECRET = "s3cr3t-canary"  # noqa: S105 - nobody's
LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}


def kafka(secret: str) -> fp.Kafka:
    return fp.Kafka("t", servers="a:9092", security={**LOGIN, "sasl.password": secret})


SINKS: dict[str, Any] = {
    "postgres": lambda secret: fp.Postgres("t", dsn=secret),
    "mysql": lambda secret: fp.MySQL("t", database="d", user="u", password=secret),
    "redis": lambda secret: fp.Redis(secret, key="k"),
    "cassandra": lambda secret: fp.Cassandra("a.b", user="u", password=secret),
    "kafka": kafka,
}
USED: dict[str, Any] = {
    "postgres": lambda sink: sink.with_secrets().dsn,
    "mysql": lambda sink: sink.with_secrets().password,
    "redis": lambda sink: sink.address(),
    "kafka": lambda sink: sink.cluster.for_writing()["sasl.password"],
}
"""What a client library is given; Cassandra's is asked below, for it needs its client."""
VALUES = {"postgres": f"host=db password={SECRET}", "redis": f"redis://u:{SECRET}@db:6379/0"}


@pytest.mark.parametrize("name", SINKS)
def test_a_secret_is_never_shown_and_a_reference_is(name: str) -> None:
    direct = SINKS[name](VALUES.get(name, SECRET))
    assert SECRET not in repr(direct)
    assert "***" in repr(direct)
    assert "env:PG_DSN" in repr(SINKS[name]("env:PG_DSN"))


@pytest.mark.parametrize("name", USED)
def test_it_is_read_when_it_is_used_and_again_at_the_next_use(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = VALUES.get(name, SECRET)
    sink = SINKS[name]("env:CANARY")
    for text in (value, value.replace(SECRET, "another")):
        monkeypatch.setenv("CANARY", text)
        assert text == USED[name](sink)
    (tmp_path / "secret").write_text(value + "\n")
    in_file = SINKS[name](f"file:{tmp_path}/secret")
    assert value == USED[name](in_file)
    assert SECRET not in repr(in_file)
    assert value == USED[name](SINKS[name](value))


def test_cassandra_logs_in_with_what_the_reference_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cassandra")
    from fencepost.connectors.cassandra.server import _login  # noqa: PLC0415 - its client is an extra

    monkeypatch.setenv("CANARY", SECRET)
    assert SECRET == _login(SINKS["cassandra"]("env:CANARY")).password


@pytest.mark.parametrize("place", ["env:NOBODY_SET_THIS", "file:/nowhere/at/all", "file:/"])
@pytest.mark.parametrize("name", USED)
def test_a_place_with_nothing_in_it_is_refused_by_name(name: str, place: str) -> None:
    with pytest.raises(BadConfig) as refused:
        USED[name](SINKS[name](place))
    assert "secret_missing" == refused.value.code
    assert place.partition(":")[2] in refused.value.what


def test_a_redis_url_behind_a_reference_is_checked_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", f"http://{SECRET}")
    with pytest.raises(BadConfig) as refused:
        SINKS["redis"]("env:CANARY").address()
    assert "bad_sink" == refused.value.code
    assert SECRET not in str(refused.value)


def test_tasks_get_what_the_driver_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment and the files of an executor are others."""
    monkeypatch.setenv("CANARY", VALUES["postgres"])
    sink = fp.Postgres("t", dsn="env:CANARY", staging="target")
    sent = pickle.dumps(sink.in_tasks("job"))
    monkeypatch.delenv("CANARY")
    arrived = pickle.loads(sent)  # noqa: S301 - our own
    assert VALUES["postgres"] in [getattr(getattr(arrived, name), "dsn", None) for name in fields_of(arrived)]
    assert SECRET not in repr(arrived)


def fields_of(value: Any) -> list[str]:
    return [*getattr(value, "__slots__", ()), *getattr(value, "__dict__", ())]


def test_a_secret_is_a_text_like_any_other() -> None:
    secret = credential.Secret(SECRET)
    assert SECRET == secret
    assert f"{secret}" == SECRET
    assert "{'a': '***'}" == str({"a": secret})


def test_a_server_that_is_copied_keeps_its_reference() -> None:
    servers = Servers("a:9092", {**LOGIN, "sasl.password": "env:CANARY"})
    assert "CANARY" not in os.environ
    assert "env:CANARY" == servers.security["sasl.password"]
