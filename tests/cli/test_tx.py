"""`fencepost tx` on a real broker, with ledgers of jobs that were really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.process import free_ports
from fencepost_proof.stand_in import StandIn
from killing import Scene, wait, wait_until_stopped
from topics import read

import fencepost as fp
from fencepost.cli import tx as tx_module
from fencepost.cli.main import cli
from fencepost.connectors.kafka.coordinator import Coordinator
from fencepost.connectors.kafka.servers import Servers
from fencepost.errors import FencepostError

pytestmark = pytest.mark.in_memory
DECIDED = "decide.after=kill@2"
"""Epoch 0 is done, epoch 1 is decided and its transaction open."""
UNDECIDED = "decide.before=kill@2"
TAKEN_OVER = "recover.takeover.after=kill"
VANISHED = -signal.SIGKILL


@dataclass(frozen=True)
class Topics(Scene):
    """The stand-in job on topics of a broker."""

    broker: Broker = field(kw_only=True)
    keep_rows: bool = True

    def job(self) -> StandIn:
        sinks = {
            name: fp.Kafka(
                self.topic(name),
                servers=self.broker.servers,
                key="id",
                name=name,
                keep_rows=self.keep_rows,
            )
            for name in self.targets
        }
        return StandIn(checkpoint=self.checkpoint, numbers=self.numbers, per_epoch=4, sinks=sinks)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def topic(self, name: str = "out") -> str:
        return f"{name}-{self.folder.name}"

    def seen(self, name: str = "out") -> list[int]:
        """The ids that a reader of committed messages sees."""
        return sorted(json.loads(m.value())["id"] for m in read(self.broker.servers, self.topic(name)))

    def open_ids(self) -> list[str]:
        """What the cluster has open of this job's lineage."""
        coordinator = Coordinator(Servers(self.broker.servers))
        try:
            return [name for name in coordinator.open_ids() if f".{self.lineage[:8]}." in name]
        finally:
            coordinator.close()

    @property
    def lineage(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])


@pytest.fixture
def stopped() -> Iterator[Callable[[Topics], int]]:
    """A driver that sleeps right before its second decision; it does not outlive the test."""
    children = []

    def start(scene: Topics) -> int:
        children.append(scene.start("decide.before=stop@2"))
        assert wait_until_stopped(children[-1])
        return children[-1]

    yield start
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.fixture
def scene(broker: Broker, tmp_path: Path) -> Topics:
    return make_scene(broker, tmp_path)


def make_scene(broker: Broker, place: Path, *targets: str, keep_rows: bool = True) -> Topics:
    folder = place / uuid.uuid4().hex[:8]
    folder.mkdir()
    made = Topics(folder, targets or ("out",), broker=broker, keep_rows=keep_rows)
    for name in made.targets:
        broker.create_topic(made.topic(name), partitions=2)
    return made


def tx(scene: Topics, *words: str, checkpoint: bool = True) -> tuple[int, str]:
    """The command as typed: exit code, and what it said."""
    more = ["--checkpoint", str(scene.checkpoint)] if checkpoint else []
    return typed(*words, "--servers", scene.broker.servers, *more)


def typed(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["tx", *words])
    if isinstance(result.exception, FencepostError):  # as main() does
        assert 4 >= len(str(result.exception).splitlines())
        return 2, result.output + str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, " ".join(result.output.split())


def listed(scene: Topics, *words: str, checkpoint: bool = True) -> list[dict[str, Any]]:
    """The transactions of one lineage."""
    code, text = tx(scene, "list", "--json", *words, checkpoint=checkpoint)
    assert 0 == code
    return [row for row in json.loads(text)["transactions"] if row["lineage"] == scene.lineage[:8]]


def files(scene: Topics) -> dict[str, bytes]:
    """Everything in the checkpoint."""
    return {str(path): path.read_bytes() for path in scene.checkpoint.rglob("*") if path.is_file()}


class TestDecided:
    def test_it_is_listed_shown_and_committed_and_the_job_goes_on_exactly(self, scene: Topics) -> None:
        assert VANISHED == scene.run(DECIDED)
        (row,) = listed(scene)
        assert ("decided", 1, 4, "Ongoing", "open") == tuple(
            row[name] for name in ("verdict", "epoch", "rows", "state", "fate")
        )
        assert 0 < row["left_s"] <= 900
        before, name = files(scene), row["id"]

        code, text = tx(scene, "list")
        assert (0, True) == (code, all(word in text for word in (name, "decided", "Never abort it", "job stand-in")))
        code, text = tx(scene, "show", name)
        assert 0 == code
        for words in ("epoch 1: sink out, 4 rows, kept", "first message", "readers wait at", "fate open", "Commit it"):
            assert words in text
        plain = json.loads(tx(scene, "show", name, "--json")[1])
        assert (name, "decided", "open") == tuple(plain[key] for key in ("id", "verdict", "fate"))

        assert (1, True) == (tx(scene, "commit", name)[0], list(range(4)) == scene.seen())
        code, text = tx(scene, "commit", name, "--yes")
        assert (0, True) == (code, "is now: committed" in text)
        assert list(range(8)) == scene.seen()
        assert "already committed" in tx(scene, "commit", name, "--yes")[1]
        assert [] == listed(scene)
        assert before == files(scene), "the checkpoint is only read"

        assert 0 == scene.run()
        assert list(range(12)) == scene.seen()
        code, text = tx(scene, "commit", name, "--yes")
        assert (2, True) == (code, "is done" in text)

    def test_it_is_never_aborted_unless_its_loss_is_accepted(self, scene: Topics) -> None:
        assert VANISHED == scene.run(DECIDED)
        (name,) = scene.open_ids()
        for words in ((), ("--yes",)):
            code, text = tx(scene, "abort", name, *words)
            assert (2, True) == (code, "[decided]" in text)
            code, text = tx(scene, "abort", name, *words, checkpoint=False)
            assert (2, True) == (code, "[may_be_decided]" in text)
        code, text = tx(scene, "abort", name, "--accept-loss")
        assert (1, True) == (code, "Nothing was done; add --yes." in text)
        assert [name] == scene.open_ids()

        code, text = tx(scene, "abort", name, "--accept-loss", "--yes")
        assert (0, True) == (code, "is now: aborted" in text and "rows from the kept files" in text)
        assert "aborted" == listed(scene)[0]["fate"]
        code, text = tx(scene, "commit", name, "--yes")
        assert (2, True) == (code, "[aborted]" in text)
        assert 0 == scene.run()
        assert list(range(12)) == scene.seen()

    def test_the_topic_is_asked_when_the_coordinator_forgot(self, scene: Topics) -> None:
        assert VANISHED == scene.run(DECIDED)
        (name,) = scene.open_ids()
        assert 0 == tx(scene, "commit", name, "--yes")[0]
        producer = Producer({"bootstrap.servers": scene.broker.servers, "transactional.id": name})
        producer.init_transactions(20)
        assert ["unknown"] == [row["fate"] for row in listed(scene)]
        code, text = tx(scene, "show", name)
        assert (0, True) == (code, "fate committed, by the topic itself" in text)
        assert "already committed" in tx(scene, "commit", name, "--yes")[1]

    def test_another_transaction_under_its_id_is_not_taken_for_it(self, scene: Topics) -> None:
        assert VANISHED == scene.run(DECIDED)
        (name,) = scene.open_ids()
        assert 0 == tx(scene, "commit", name, "--yes")[0]
        producer = Producer({"bootstrap.servers": scene.broker.servers, "transactional.id": name})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(scene.topic(), b"zombie")
        producer.flush(20)
        assert ["running?"] == [row["verdict"] for row in listed(scene)]
        assert "an earlier transaction under this id: committed" in tx(scene, "show", name)[1]
        assert 2 == tx(scene, "commit", name, "--yes")[0]
        assert list(range(8)) == scene.seen()
        producer.abort_transaction(20)

    def test_it_waits_its_turn_if_another_sinks_rows_are_not_kept(self, broker: Broker, tmp_path: Path) -> None:
        hasty = make_scene(broker, tmp_path, "one", "two", keep_rows=False)
        assert VANISHED == hasty.run(DECIDED)
        names = hasty.open_ids()
        assert 2 == len(names)
        for name in names:
            code, text = tx(hasty, "commit", name, "--yes")
            assert (2, True) == (code, "[out_of_turn]" in text)
        assert 2 == len(hasty.open_ids())


class TestUndecided:
    def test_of_the_latest_writer_it_may_be_running(self, scene: Topics, stopped: Callable[[Topics], int]) -> None:
        child = stopped(scene)
        (row,) = listed(scene)
        assert ("running?", None) == (row["verdict"], row["epoch"])
        code, text = tx(scene, "commit", row["id"], "--yes")
        assert (2, True) == (code, "[not_decided]" in text)
        code, text = tx(scene, "abort", row["id"], "--yes")
        assert (2, True) == (code, "[may_be_decided]" in text)
        os.kill(child, signal.SIGCONT)
        assert 0 == wait(child)
        assert list(range(12)) == scene.seen()

    def test_a_running_one_is_aborted_only_if_loss_is_accepted_and_the_job_recovers(
        self, scene: Topics, stopped: Callable[[Topics], int]
    ) -> None:
        child = stopped(scene)
        (name,) = scene.open_ids()
        code, text = tx(scene, "abort", name, "--accept-loss", "--yes")
        assert (0, True) == (code, "Warning" in text and "is now: aborted" in text)
        os.kill(child, signal.SIGCONT)
        assert 0 != wait(child)
        assert 0 == scene.run()
        assert list(range(12)) == scene.seen()

    def test_of_an_older_writer_it_is_an_orphan_and_never_committed(self, scene: Topics) -> None:
        assert VANISHED == scene.run(UNDECIDED)
        assert VANISHED == scene.run(TAKEN_OVER)
        (row,) = listed(scene)
        assert "orphan" == row["verdict"]
        name = row["id"]
        code, text = tx(scene, "commit", name, "--yes")
        assert (2, True) == (code, "[not_decided]" in text and "would duplicate the rows" in text)
        assert "Abort it. Its epoch was never decided" in tx(scene, "show", name)[1]
        assert 1 == tx(scene, "abort", name)[0]
        assert [name] == scene.open_ids()
        assert (0, True) == (tx(scene, "abort", name, "--yes")[0], list(range(4)) == scene.seen())
        assert [] == scene.open_ids()
        code, text = tx(scene, "abort", name, "--yes")
        assert (2, True) == (code, "[not_open]" in text)
        assert 0 == scene.run()
        assert list(range(12)) == scene.seen()


def test_without_a_checkpoint_nothing_is_known_and_strangers_are_strangers(scene: Topics) -> None:
    assert VANISHED == scene.run(DECIDED)
    stranger = Producer({"bootstrap.servers": scene.broker.servers, "transactional.id": f"x-{scene.folder.name}"})
    stranger.init_transactions(20)
    stranger.begin_transaction()
    stranger.produce(scene.topic(), b"x")
    stranger.flush(20)
    (row,) = listed(scene, checkpoint=False)
    assert "unknown" == row["verdict"]
    everything = json.loads(typed("list", "--json", "--all", "--servers", scene.broker.servers)[1])["transactions"]
    assert ["foreign"] == [row["verdict"] for row in everything if row["id"] == f"x-{scene.folder.name}"]
    assert "of other programs" in tx(scene, "list", "--all")[1]
    assert "[foreign]" in tx(scene, "abort", f"x-{scene.folder.name}", "--yes", "--accept-loss")[1]
    assert "[no_checkpoint]" in tx(scene, "commit", row["id"], "--yes", checkpoint=False)[1]
    assert "[unknown_transaction]" in tx(scene, "show", "no-such-id")[1]
    stranger.abort_transaction(20)


def test_a_checkpoint_that_cannot_be_trusted_is_refused(scene: Topics, tmp_path: Path) -> None:
    assert VANISHED == scene.run(DECIDED)
    (name,) = scene.open_ids()
    assert "The folder does not exist" in typed("list", "--checkpoint", str(tmp_path / "nowhere"))[1]
    assert "contains no ledger" in typed("list", "--checkpoint", str(tmp_path))[1]
    other = make_scene(scene.broker, tmp_path)
    assert 0 == other.run()
    code, text = typed("abort", name, "--servers", scene.broker.servers, "--checkpoint", str(other.checkpoint), "--yes")
    assert (2, True) == (code, "[another_lineage]" in text)
    record = scene.records()[-1]
    record.write_bytes(record.read_bytes().replace(b'"rows":4', b'"rows":5'))
    code, text = tx(scene, "commit", name, "--yes")
    assert (2, True) == (code, "[ledger_damaged]" in text)
    assert [name] == scene.open_ids()


@pytest.mark.serial
def test_without_a_broker_the_ledger_speaks(scene: Topics) -> None:
    assert VANISHED == scene.run(DECIDED)
    (row,) = json.loads(typed("list", "--json", "--checkpoint", str(scene.checkpoint))[1])["transactions"]
    assert ("decided", 1, None) == (row["verdict"], row["epoch"], row["state"])
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "fencepost", "tx", "list", "--servers", nobody]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--checkpoint", str(scene.checkpoint)], check=False, capture_output=True, text=True
    )
    assert 12 > time.monotonic() - began
    assert 1 == done.returncode
    assert row["id"] in done.stdout
    assert "did not answer" in done.stdout
    assert ["[target_silent]", "data:", "next:"] == [line.split()[0] for line in done.stderr.splitlines()]


def test_it_logs_in_by_a_properties_file_and_says_no_secret(scene: Topics, tmp_path: Path) -> None:
    assert VANISHED == scene.run(DECIDED)
    (name,) = scene.open_ids()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = tmp_path / "client.properties"

    def show(user: str, secret: str) -> tuple[int, str]:
        config.write_text(
            f"# how to log in\nbootstrap.servers={scene.broker.sasl_servers}\nclient.id=me\n"
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism = PLAIN\n"
            f'sasl.jaas.config={module} required \\\n  username="{user}" password="{secret}";\n'
        )
        code, text = typed("show", name, "--config", str(config))
        assert secret not in text
        return code, text

    assert 0 == show("app", "app-secret")[0]
    code, text = show("weak", "weak-secret")
    assert (2, True) == (code, "[not_allowed]" in text)
    config.write_text("bootstrap.servers localhost-secret\n")
    code, text = typed("list", "--config", str(config))
    assert (2, True, False) == (code, "[bad_config_line]" in text, "localhost-secret" in text)


def test_one_that_outlived_its_timeout_hangs(scene: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    assert VANISHED == scene.run(DECIDED)
    (name,) = scene.open_ids()
    code, text = typed("find-hanging", "--servers", scene.broker.servers)
    assert (0, True) == (code, "None is hanging" in text)
    monkeypatch.setattr(tx_module, "now_ms", lambda: (time.time() + 1000) * 1000)
    code, text = typed("find-hanging", "--servers", scene.broker.servers)
    assert (1, True) == (code, f"{name}: Ongoing for 16 min" in text)
    code, text = typed("find-hanging", "--servers", scene.broker.servers, "--json")
    assert (1, True) == (code, name in {one["id"] for one in json.loads(text)["overdue"]})


@pytest.mark.parametrize("word", ["committed", "lost"])
def test_what_nobody_can_tell_a_person_settles_and_the_next_start_believes_it(scene: Topics, word: str) -> None:
    """The topic has lost the first message, somebody took the id: committed before that, or lost by it."""
    assert VANISHED == scene.run(DECIDED if word == "lost" else "commit.after=kill@2")
    (handle,) = newest_decision(scene)["handles"]
    name, (topic, partition, offset) = handle["body"]["transactional_id"], handle["body"]["first_record"]
    assert 2 == tx(scene, "settle", name, "--as", word, "--yes")[0], "the coordinator still knows"
    forget(scene, name, TopicPartition(topic, partition, offset + 1))
    before = scene.seen()
    assert 4 == scene.run()
    assert "outcome_unknown" in (scene.folder / "error").read_text()
    assert (1, True) == ((said := tx(scene, "settle", name, "--as", word))[0], "Nothing was done" in said[1])
    assert 0 == tx(scene, "settle", name, "--as", word, "--yes")[0]
    assert 0 == scene.run()
    more = len(scene.numbers) - 8 + (4 if word == "lost" else 0)
    assert len(before) + more == len(scene.seen())


def newest_decision(scene: Topics) -> dict[str, Any]:
    records = [json.loads(path.read_text()) for path in scene.records()]
    return [record["body"] for record in records if record["kind"] == "decision"][-1]


def forget(scene: Topics, name: str, eaten: TopicPartition) -> None:
    """A stranger takes the id, and retention the message that could tell."""
    other = Producer({"bootstrap.servers": scene.broker.servers, "transactional.id": name})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(eaten.topic, json.dumps({"id": -1}), partition=eaten.partition)
    other.commit_transaction(20)
    admin = scene.broker.admin()
    admin.delete_records([eaten])[eaten].result(20)
