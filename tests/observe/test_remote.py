"""A job whose checkpoint is on a remote store is seen from a machine without Spark; and a store that is silent stops
nothing.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from ended import ended

from fencepost.cli import lookup, stop
from fencepost.cli.frame import run
from fencepost.cli.main import cli
from fencepost.errors import CheckpointRefused, FencepostError
from fencepost.observe import commands, health, heartbeat, history, journal, registry
from fencepost.observe.events import Event, Kind
from fencepost.observe.heartbeat import Beat, Ear, Pulse, this_driver
from fencepost.observe.journal import Journal
from fencepost.store import RemotePath, store_at
from fencepost.store import path as store_path

if TYPE_CHECKING:
    from fencepost_proof.rig.s3 import S3

HERE = socket.gethostname()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without Spark, with a home that is empty, and clients made anew: they keep the address they had."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setenv(registry.HOME, str(tmp_path / "home"))
    store_path._client.cache_clear()
    yield
    store_path._client.cache_clear()


@pytest.fixture(scope="module")
def s3(root: Path, require: Callable[[str], None]) -> Iterator[S3]:
    """One that may be frozen."""
    require("s3")
    from fencepost_proof.rig.s3 import S3  # noqa: PLC0415 - what it needs is there now

    with S3(root / "frozen-s3") as made:
        yield made


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.make_bucket(f"bucket-{uuid.uuid4().hex[:8]}")


def put(local: Path, url: str) -> RemotePath:
    """The same checkpoint there, without what is not kept there."""
    for path in local.rglob("*"):
        name = path.relative_to(local).as_posix()
        if path.is_file() and "journal" not in name:
            store_at(url).replace(name, path.read_bytes())
    return RemotePath(url)


def beat(url: str, writer: int, *, host: str = HERE, ago: float = 0.0, pid: int | None = None) -> None:
    """A driver says that it lives."""
    at = time.time() - ago
    said = Beat(
        job="stand-in", host=host, pid=pid or os.getpid(), supervisor=None, writer=writer, epoch=1, since_s=at, at_s=at
    )
    store_at(url).replace(f"fencepost/pulse/{host}-{said.pid}.json", json.dumps(asdict(said)).encode())


def call(*words: str) -> Result:
    """As typed; what is raised has become an exit code."""
    return CliRunner().invoke(cli, list(words))


def test_epochs_and_end_of_a_job_are_told_from_its_store_as_from_a_folder(bucket: str, tmp_path: Path) -> None:
    local = ended(tmp_path / "job")
    there = put(local, f"{bucket}/checkpoints/orders")
    mine, theirs = history.read(local), history.read(there)
    assert [(e.epoch, e.standing, e.record, e.at) for e in mine.epochs] == [
        (e.epoch, e.standing, e.record, e.at) for e in theirs.epochs
    ]
    found = health.look(there)
    assert ("stopped", "stand-in", 1, there.url) == (found.condition, found.job, found.epoch, found.checkpoint)
    said = call("status", there.url, "--json")
    assert (0, "stopped") == (said.exit_code, json.loads(said.stdout)["condition"])
    assert 0 == call("epochs", "list", there.url).exit_code
    stopped = call("stop", there.url)
    assert 1 == stopped.exit_code
    assert "nothing to stop" in stopped.output
    assert not [name for name in store_at(there.url).list("fencepost") if name == "request.json"]


def test_of_a_driver_on_another_machine_only_is_said_what_is_known(bucket: str, tmp_path: Path) -> None:
    there = put(ended(tmp_path / "job", "decide.after=kill@2"), f"{bucket}/orders")
    writer = health.look(there).writer
    assert writer is not None
    beat(there.url, writer, host="elsewhere", pid=7)
    found = health.look(there)
    assert ("running", "elsewhere", 7) == (found.condition, found.host, found.pid)
    assert any("clock of elsewhere may differ" in note for note in found.notes)
    beat(there.url, writer, host="elsewhere", pid=7, ago=3600.0)
    found = health.look(there)
    assert "unknown" == found.condition  # its clock may be an hour late
    assert any(re.search(r"\b360\d s old", note) for note in found.notes), "give or take what a busy machine takes"
    beat(there.url, writer, host="elsewhere", pid=7, ago=-3600.0)
    assert "running" == health.look(there).condition


def test_an_old_journal_here_says_nothing_of_a_driver_elsewhere(bucket: str, tmp_path: Path) -> None:
    there = put(ended(tmp_path / "job"), f"{bucket}/orders")
    journal.begin(there)
    given = {"job": "stand-in", "at": "2030-01-01T00:00:00+00:00", "pid": 1}
    Journal(there).note(Event(kind=Kind.GAVE_UP, code="restarts_spent", **given))
    assert "failed" == health.look(there).condition
    writer = health.look(there).writer
    beat(there.url, writer or 0, host="elsewhere", pid=7)
    assert "running" == health.look(there).condition


def test_the_journal_of_a_remote_checkpoint_is_in_the_registrys_home_and_goes_with_it(tmp_path: Path) -> None:
    there = RemotePath("s3a://bucket/checkpoints/orders")
    event = Event(kind=Kind.STARTED, job="orders", at="2030-01-01T00:00:00+00:00", pid=1, writer=4)
    Journal(there).note(event)
    assert [] == list(journal.read(there))  # nobody began
    journal.begin(there)
    Journal(there).note(event)
    assert [event] == list(journal.read(there))
    assert 4 == journal.newest_writer(there)
    assert [] == list(journal.read("s3a://bucket/other/orders"))
    assert journal.path_of(there).is_relative_to(tmp_path / "home")
    registry.note("orders", there.url)
    assert [there.url] == [noted.checkpoint for noted in registry.by_name("orders")]
    registry.forget(there)
    assert ([], []) == (list(journal.read(there)), registry.everything())


def test_a_pulse_is_in_the_store_from_its_first_beat_to_its_end(bucket: str) -> None:
    url = f"{bucket}/orders"
    beat(url, 1, pid=2**22 + 1)  # of a process that is no more

    def living() -> Beat:
        return this_driver("orders", 4, 7)

    mine = Pulse()
    mine.add(url, living)
    assert [(4, 7, os.getpid())] == [(one.writer, one.epoch, one.pid) for one in heartbeat.beats(url)]
    mine.remove(url, lambda: None)  # another one's
    assert 1 == len(heartbeat.beats(url))
    mine.remove(url, living)
    assert [] == heartbeat.beats(url)


@pytest.mark.serial
def test_a_silent_store_does_not_stop_the_beats_to_the_supervisor(
    bucket: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "FAR_EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.1)
    monkeypatch.setattr(heartbeat, "FAR_WAIT_S", 0.5)
    heard: list[float] = []
    mine = Pulse()
    url = f"{bucket}/orders"

    def living() -> Beat:
        return this_driver("orders", 4, 7)

    mine.begin(SimpleNamespace(pid=1, beat=lambda: heard.append(time.monotonic()), is_gone=lambda: False))
    mine.add(url, living)
    ear = Ear(url)
    s3.pause()
    try:
        before = len(heard)
        time.sleep(2)
        assert len(heard) > before + 3
        began = time.monotonic()
        assert [] == ear.beats()
        assert time.monotonic() - began < 1
        began = time.monotonic()
        assert None is commands.find(url, 4)
        mine.remove(url, living)
        assert time.monotonic() - began < 6
    finally:
        s3.resume()
    assert mine._aside.ask(lambda: True, 60, after=True)
    assert [] == heartbeat.beats(url)  # also if a beat was under way


def test_a_wish_is_left_in_the_store_and_looked_for_every_few_seconds(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/orders"
    assert None is commands.find(url, 4)
    commands.leave(url, "stop", 4)
    assert ("stop", None) == (commands.find(url, 4), commands.find(url, 5))
    store_at(url).delete(commands.NAME)  # by another process: not seen yet
    assert "stop" == commands.find(url, 4)
    monkeypatch.setattr(commands, "EVERY_S", 0.0)
    assert None is commands.find(url, 4)
    commands.leave(url, "cancel", 4)
    journal.begin(url)
    Journal(url).note(Event(kind=Kind.STARTED, job="orders", at="2030-01-01T00:00:00+00:00", pid=1, writer=4))
    assert "cancel" == commands.find_between(url)
    commands.take_back(url, 5)
    assert "cancel" == commands.find(url, 4)
    commands.take_back(url, 4)
    assert (None, None) == (commands.find(url, 4), commands.find_between(url))


def test_a_job_on_another_machine_is_stopped_through_the_store(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "FAR_TICK_S", 0.1)
    there = put(ended(tmp_path / "job"), f"{bucket}/orders")
    writer = health.look(there).writer or 0
    beat(there.url, writer, host="elsewhere", pid=7)
    asked = call("stop", there.url, "--timeout", "1s")
    assert 1 == asked.exit_code
    assert f"asked process 7 on elsewhere (writer {writer}) to stop" in asked.output
    assert "stop" == json.loads(store_at(there.url).read(commands.NAME) or b"{}")["wish"]
    store_at(there.url).delete("fencepost/pulse")  # it heeded it
    store_at(there.url).delete(commands.NAME)
    beat(there.url, writer, host="elsewhere", pid=7)

    class Driver:
        """Heeds the wish as soon as it is there."""

        def look(self, checkpoint: RemotePath) -> health.Health:
            if store_at(checkpoint.url).read(commands.NAME) is not None:
                store_at(checkpoint.url).delete("fencepost/pulse")
                store_at(checkpoint.url).delete(commands.NAME)
            return health.look(checkpoint)

    monkeypatch.setattr(stop, "look", Driver().look)
    done = call("stop", there.url, "--timeout", "30s")
    # The ledger of a stand-in names this machine as the driver's, so its end is told by its pulse and its wish alone.
    assert (0, "is stopped" in done.output) == (done.exit_code, True), done.output


@pytest.mark.parametrize(
    ("url", "code", "exit_code"),
    [
        ("gs://bucket/orders", "unknown_store", 2),
        ("s3a://bucket", "no_folder", 2),
        ("s3a://bucket/orders", "store_silent", 1),
        ("hdfs://namenode/orders", "store_silent", 1),
    ],
)
@pytest.mark.parametrize("verb", ["status", "epochs list", "stop", "verify", "tx list --checkpoint"])
def test_what_cannot_be_reached_is_refused_with_words_by_every_verb(
    verb: str, url: str, code: str, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "PATIENCE_S", 0.1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FENCEPOST_WEBHDFS", "127.0.0.1:9")
    with pytest.raises(FencepostError) as found:
        cli([*verb.split(), url], standalone_mode=False)
    assert code == found.value.code
    assert exit_code == run(lambda: cli([*verb.split(), url], standalone_mode=False))


def test_credentials_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(CheckpointRefused, match="no usable credentials") as found:
        lookup.find("s3a://bucket/orders")
    assert "store_denied" == found.value.code


@pytest.mark.parametrize(("package", "extra"), [("boto3", "s3"), ("requests", "hdfs")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = {"s3": "s3a", "hdfs": "hdfs"}[extra] + "://store/orders"
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FencepostError) as found:
        lookup.find(url)
    assert ("no_store_client", f"pip install 'fencepost[{extra}]'") == (found.value.code, found.value.next)
    assert [] == heartbeat.beats(url)
    assert None is commands.find(url, 1)
    registry.note("orders", url)
    listed = call("status")
    assert 1 == listed.exit_code
    assert "no_store_client" in listed.output


def test_the_clients_of_stores_are_imported_only_for_a_store(tmp_path: Path) -> None:
    verbs = "status", "epochs", "stop", "verify", "tx", "doctor", "savepoint"
    imports = "; ".join(f"import fencepost.cli.{verb}" for verb in verbs)
    heavy = "{'boto3', 'botocore', 'fsspec', 'pyspark', 'requests'}"
    code = f"import sys; {imports}; from fencepost.cli.lookup import find; find('.'); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "set()" == done.stdout.strip()
