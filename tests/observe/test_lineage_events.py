"""OpenLineage: the events of runs that end, fail, are killed and fenced, on the wire; names; a server that is gone."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from fencepost_proof.stand_in import StandIn
from killing import wait
from lineage_server import LineageServer, receiving_lineage
from openlineage.client.naming import dataset as theirs

import fencepost as fp
from fencepost import connectors, faults
from fencepost.contract import Dataset, Sink, dataset_at
from fencepost.errors import BadConfig, EpochFailed, Fenced, FencepostError, now
from fencepost.guarantee import Guarantee
from fencepost.job import _named
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Journal, Observer
from fencepost.observe.lineage_events import LAST_S, LOST, LineageSender, client_for, follow
from fencepost.spark.plan import PlanSource
from fencepost.store import place

CANARY = "canary-8d1f"
SOURCE = Dataset("file", "/data/numbers")


def job_in(folder: Path, observer: Observer, count: int = 6, **settings: Any) -> StandIn:
    (folder / "checkpoint" / "fencepost").mkdir(parents=True, exist_ok=True)
    sink = fp.SQLite(folder / "out.db", table="rows", name="db")
    return StandIn(folder / "checkpoint", tuple(range(count)), 2, {"db": sink}, observer=observer, **settings)


def lineage_of(folder: Path, server: LineageServer, every_s: float = 0.0, *, named: bool = True) -> LineageSender:
    made = LineageSender("orders", lambda: place(folder / "checkpoint"), client_for(server.url, "orders"), every_s)
    if named:
        made.name(({"0": [SOURCE]}, {"db": fp.SQLite(folder / "out.db", table="rows").dataset()}))
    return made


def run(folder: Path, lineage: LineageSender, count: int = 6, **settings: Any) -> None:
    """A job that looks after every epoch, and ends in order."""
    observer = Observer("orders")
    observer.call(lambda event: lineage.look(), Kind.COMPLETE)
    job_in(folder, observer, count, **settings).run()
    observer.note(Kind.STOPPED)
    lineage.look()


def test_a_run_is_told_from_its_start_to_its_end_with_positions_and_rows_of_all_epochs_so_far(tmp_path: Path) -> None:
    with receiving_lineage() as server:
        run(tmp_path, lineage_of(tmp_path, server))
    assert ["START", "RUNNING", "RUNNING", "RUNNING", "COMPLETE"] == server.states
    assert 1 == len({event["run"]["runId"] for event in server.events})
    assert {("default", "orders")} == {(event["job"]["namespace"], event["job"]["name"]) for event in server.events}
    assert {"STREAMING"} == {event["job"]["facets"]["jobType"]["processingType"] for event in server.events}
    assert [2, 4, 6] == server.rows("RUNNING")
    assert [6] == server.rows("COMPLETE")
    ends = [("0", "-", json.dumps({"position": end}, separators=(",", ":"))) for end in (2, 4, 6)]
    assert ends == server.positions("RUNNING")
    assert ends[-1:] == server.positions("COMPLETE")
    epochs = [event["run"]["facets"]["fencepost_epochs"] for event in server.events]
    assert [(None, None), (0, 0), (0, 1), (0, 2), (0, 2)] == [(one.get("first"), one.get("last")) for one in epochs]
    table = {"namespace": "file", "name": f"{(tmp_path / 'out.db').resolve()}:rows"}
    assert table.items() <= server.events[0]["outputs"][0].items()
    times = [event["eventTime"] for event in server.events]
    assert sorted(times) == times


def test_a_later_run_counts_from_its_own_start(tmp_path: Path) -> None:
    with receiving_lineage() as server:
        run(tmp_path, lineage_of(tmp_path, server), 4)
        server.events.clear()
        run(tmp_path, lineage_of(tmp_path, server), 6)
    assert ["START", "RUNNING", "COMPLETE"] == server.states, "and no end of the run before, which had one"
    assert [2] == server.rows("COMPLETE")
    assert [("0", '{"position":4}', '{"position":6}')] == server.positions("COMPLETE")


@pytest.mark.parametrize("overlap", [False, True])
def test_many_epochs_are_one_event_and_the_end_has_them_all(overlap: bool, tmp_path: Path) -> None:
    with receiving_lineage() as server:
        run(tmp_path, lineage_of(tmp_path, server, every_s=1000.0), 40, overlap=overlap)
    assert ["START", "RUNNING", "COMPLETE"] == server.states
    assert ([2], [40]) == (server.rows("RUNNING"), server.rows("COMPLETE"))


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_the_weaker_guarantees_tell_positions_and_no_rows(guarantee: Guarantee, tmp_path: Path) -> None:
    with receiving_lineage() as server:
        run(tmp_path, lineage_of(tmp_path, server), guarantee=guarantee)
    assert [("0", "-", '{"position":6}')] == server.positions("COMPLETE")
    assert {} == server.events[-1]["outputs"][0]["outputFacets"]


def test_the_run_of_a_killed_driver_is_ended_by_the_next_and_all_rows_are_counted_once(tmp_path: Path) -> None:
    with receiving_lineage() as server:
        pid = os.fork()
        if not pid:
            try:
                faults.arm({faults.ARM: "decide.after=kill@2"})
                run(tmp_path, lineage_of(tmp_path, server))
            finally:
                os._exit(0)
        assert -9 == wait(pid)
        assert ["START", "RUNNING"] == server.states
        run(tmp_path, lineage_of(tmp_path, server))
    assert ["START", "RUNNING", "FAIL", "START", "RUNNING", "RUNNING", "COMPLETE"] == server.states
    first, second = server.events[0]["run"]["runId"], server.events[-1]["run"]["runId"]
    assert [first] * 3 + [second] * 4 == [event["run"]["runId"] for event in server.events]
    assert first != second
    assert LOST == server.events[2]["run"]["facets"]["errorMessage"]["message"]
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        in_table = database.execute("SELECT count(*) FROM rows").fetchone()[0]
    assert in_table == server.rows("RUNNING")[0] + server.rows("COMPLETE")[0]


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (EpochFailed("spark_failed", "Spark ended the query.", next="Look."), "FAIL"),
        (Fenced("fenced", "Another driver took over.", next="Nothing."), "ABORT"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_run_that_fails_or_is_fenced_says_so(error: FencepostError, state: str, named: bool, tmp_path: Path) -> None:
    with receiving_lineage() as server:
        lineage = lineage_of(tmp_path, server, named=named)
        observer = Observer("orders")
        job_in(tmp_path, observer).run()
        observer.note_failure(error)
        lineage.look()
    assert ["START", state] == server.states, "what was between them is in the last one"
    message = server.events[-1]["run"]["facets"]["errorMessage"]["message"]
    assert f"{error.code}: {error.what}" == message
    assert named == bool(server.events[-1]["outputs"])


def test_of_two_drivers_each_ends_its_own_run_and_the_second_also_that_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "fencepost").mkdir(parents=True)
    noted = Journal(tmp_path / "checkpoint")

    def note(kind: Kind, pid: int) -> None:
        noted.note(Event(kind=kind, job="orders", at=now(), pid=pid, writer=pid, code="fenced", what="Fenced."))

    with receiving_lineage() as server:
        first, second = lineage_of(tmp_path, server), lineage_of(tmp_path, server)
        first._pid, second._pid = 11, 22
        note(Kind.STARTED, 11)
        first.look()
        note(Kind.STARTED, 22)
        second.look()
        note(Kind.FENCED, 11)
        note(Kind.STOPPED, 22)
        first.look()
        second.look()
    writers = [event["run"]["facets"]["fencepost_epochs"]["writer"] for event in server.events]
    told = [("START", 11), ("FAIL", 11), ("START", 22), ("ABORT", 11), ("COMPLETE", 22)]
    assert told == list(zip(server.states, writers, strict=True))
    assert 2 == len({event["run"]["runId"] for event in server.events})


@pytest.mark.parametrize("fault", ["commit.after", "engine.returned", "engine.completed"])
def test_an_epoch_that_was_committed_before_the_kill_is_counted_in_one_of_the_runs(fault: str, tmp_path: Path) -> None:
    with receiving_lineage() as server:
        pid = os.fork()
        if not pid:
            try:
                faults.arm({faults.ARM: f"{fault}=kill@2"})
                run(tmp_path, lineage_of(tmp_path, server))
            finally:
                os._exit(0)
        assert -9 == wait(pid)
        before = server.rows("RUNNING")[-1]
        run(tmp_path, lineage_of(tmp_path, server))
    assert [6 - before] == server.rows("COMPLETE")


def test_a_start_that_is_refused_is_a_run_that_failed(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "fencepost").mkdir(parents=True)
    with receiving_lineage() as server:
        lineage = lineage_of(tmp_path, server, named=False)
        observer = Observer("orders")
        observer.write_to(str(tmp_path / "checkpoint"))
        observer.note_failure(BadConfig("bad_sink", "No.", next="Yes."))
        lineage.look()
    assert ["START", "FAIL"] == server.states


def test_nothing_is_sent_before_the_names_are_known_nor_of_another_process(tmp_path: Path) -> None:
    with receiving_lineage() as server:
        lineage = lineage_of(tmp_path, server, named=False)
        job_in(tmp_path, Observer("orders")).run()
        lineage.look()
        assert [] == server.states
        lineage.name(({"0": [SOURCE]}, {}))
        lineage.look()
        assert ["START", "RUNNING"] == server.states
        other = lineage_of(tmp_path, server)
        other._pid = 1
        other.look()
    assert ["START", "RUNNING"] == server.states


@pytest.mark.parametrize("how", ["gone", "failing", "silent"])
def test_a_broken_server_neither_stops_a_job_nor_holds_up_its_end(how: str, tmp_path: Path) -> None:
    with receiving_lineage() as failing, socket.create_server(("127.0.0.1", 0)) as silent:
        failing.status = 503
        unanswered = f"http://127.0.0.1:{silent.getsockname()[1]}"
        url = {"gone": "http://127.0.0.1:1", "failing": failing.url, "silent": unanswered}[how]
        lineage = follow("orders", lambda: place(tmp_path / "checkpoint"), client_for(url, "orders"), 0.0)
        lineage.name(({}, {}))
        observer = Observer("orders")
        job_in(tmp_path, observer).run()
        observer.note(Kind.STOPPED)
        began = time.monotonic()
        lineage.end()
        assert time.monotonic() - began < LAST_S + 30, "a busy machine has its own pace"
    assert [] == failing.events
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert 6 == database.execute("SELECT count(*) FROM rows").fetchone()[0]


def test_a_server_that_comes_back_gets_what_it_missed(tmp_path: Path) -> None:
    with receiving_lineage() as server:
        lineage = lineage_of(tmp_path, server)
        server.status = 404  # which the client does not try again
        observer = Observer("orders")
        job_in(tmp_path, observer).run()
        lineage.look()
        assert [] == server.events
        server.status = 201
        observer.note(Kind.STOPPED)
        lineage.look()
    assert [6] == server.rows("COMPLETE")


@pytest.mark.parametrize("how", ["argument", "OPENLINEAGE_URL", "OPENLINEAGE__TRANSPORT"])
def test_openlineages_own_variables_say_where_to_and_as_whom(how: str, tmp_path: Path) -> None:
    with receiving_lineage() as server:
        auth = {"type": "api_key", "apiKey": CANARY}
        variables = {
            "argument": {"OPENLINEAGE_API_KEY": CANARY},
            "OPENLINEAGE_URL": {"OPENLINEAGE_URL": server.url, "OPENLINEAGE_API_KEY": CANARY},
            "OPENLINEAGE__TRANSPORT": {
                "OPENLINEAGE__TRANSPORT": json.dumps({"type": "http", "url": server.url, "auth": auth})
            },
        }[how]
        with mock.patch.dict(os.environ, {"OPENLINEAGE_NAMESPACE": "shop", **variables}):
            client = client_for(server.url if how == "argument" else None, "orders")
            lineage = LineageSender("orders", lambda: place(tmp_path / "checkpoint"), client, 0.0)
            lineage.name(({}, {}))
            run(tmp_path, lineage)
    assert ["START", "RUNNING", "RUNNING", "RUNNING", "COMPLETE"] == server.states
    assert {"shop"} == {event["job"]["namespace"] for event in server.events}
    assert {f"Bearer {CANARY}"} == server.keys
    assert CANARY not in json.dumps(server.events)


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    with receiving_lineage() as server, mock.patch.dict(os.environ, {"OPENLINEAGE_DISABLED": "true"}):
        run(tmp_path, lineage_of(tmp_path, server))
    assert [] == server.events


def test_an_address_that_is_not_one_is_refused() -> None:
    with pytest.raises(BadConfig) as raised:
        client_for(f"nowhere {CANARY}", "orders")
    assert "bad_lineage" == raised.value.code
    assert CANARY not in str(raised.value)


LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": CANARY}


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        (
            fp.Postgres("counts", dsn=f"postgresql://u:{CANARY}@db:5433/shop?application_name={CANARY}"),
            theirs.Postgres("db", "5433", "shop", "public", "counts"),
        ),
        (
            fp.Postgres("sales.counts", dsn=f"host=a,b dbname=shop password={CANARY}"),
            theirs.Postgres("a", "5432", "shop", "sales", "counts"),
        ),
        (
            fp.MySQL("counts", host="db", user="u", password=CANARY, database="shop"),
            theirs.MySQL("db", "3306", "shop", "counts"),
        ),
        (
            fp.Cassandra("shop.counts", hosts=["a", "b"], user="u", password=CANARY, key="word"),
            theirs.Cassandra("a", "9042", "shop", "counts"),
        ),
        (fp.Kafka("counts", servers="a:9092,b:9092", security=LOGIN), theirs.Kafka("a", "9092", "counts")),
        (fp.Files("/data/out"), theirs.LocalFileSystem("/data/out")),
        (
            fp.Delta("s3://bucket/lake/counts", storage_options={"AWS_SECRET_ACCESS_KEY": CANARY}),
            theirs.S3("bucket", "lake/counts"),
        ),
        (fp.Delta("/lake/counts"), theirs.LocalFileSystem("/lake/counts")),
    ],
)
def test_a_sink_has_the_name_of_openlineages_own_rules_without_secrets(
    sink: Sink, expected: theirs.DatasetNaming
) -> None:
    named = sink.dataset()
    assert Dataset(expected.get_namespace(), expected.get_name()) == named
    assert CANARY not in repr(named)


def test_a_sink_that_openlineage_has_no_rule_for_goes_by_its_own_name() -> None:
    assert fp.Redis(f"redis://u:{CANARY}@cache", key="word").dataset() is None
    assert fp.MySQL("t", defaults_file="/etc/my.cnf", database="d").dataset() is None


class Leaking(fp.SQLite):
    """A sink that names its password, and one that cannot name itself."""

    def dataset(self) -> Dataset:
        if self.name == "broken":
            raise ValueError(CANARY)
        return Dataset("mine://host", CANARY)


def test_a_sink_of_ones_own_has_the_name_that_it_gives_and_one_that_fails_its_own() -> None:
    """What it gives is sent as it is, so the search for a canary in other tests would find one."""
    sinks = {name: (None, Leaking("out.db", table="t", name=name)) for name in ("leaks", "broken")}
    launch: Any = SimpleNamespace(placed={"0": PlanSource("kafka", {"assign": CANARY})}, branches=sinks)
    inputs, outputs = _named(launch)
    assert {"0": [Dataset("fencepost", "0")]} == inputs
    assert {"leaks": Dataset("mine://host", CANARY), "broken": Dataset("fencepost", "broken")} == outputs


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("file:///data/in", "file", "/data/in"),
        (f"s3a://key:{CANARY}@bucket/a/b/", "s3://bucket", "a/b"),
        (f"hdfs://user:{CANARY}@nn:8020/a/b?token={CANARY}", "hdfs://nn:8020", "/a/b"),
        (f"abfss://box:{CANARY}@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net", "/a"),
        ("gs://bucket", "gs://bucket", "/"),
    ],
)
def test_a_folder_goes_by_its_store_and_key(path: str, namespace: str, name: str) -> None:
    assert Dataset(namespace, name) == dataset_at(path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            PlanSource("kafka", {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "x, y", "kafka.sasl": CANARY}),
            [Dataset("kafka://a:1", "x"), Dataset("kafka://a:1", "y")],
        ),
        (
            PlanSource("kafka", {"kafka.bootstrap.servers": "a:1", "assign": '{"x":[0,1]}'}),
            [Dataset("kafka://a:1", "x")],
        ),
        (PlanSource("FileSource[/in]", {"path": "/in", "key": CANARY}), [Dataset("file", "/in")]),
        (PlanSource("fencepost_delta", {"location": "s3://b/t", "start": CANARY}), [Dataset("s3://b", "t")]),
        (PlanSource("fencepost_iceberg", {"location": "shop.t"}), [Dataset("fencepost", "iceberg:shop.t")]),
        (PlanSource("rate", {"secret": CANARY}), [Dataset("fencepost", "rate")]),
        (PlanSource("rate", {"secret": CANARY}, "ticks"), [Dataset("fencepost", "ticks")]),
    ],
)
def test_a_source_has_the_name_that_a_sink_would_have(source: PlanSource, expected: list[Dataset]) -> None:
    assert expected == connectors.datasets(source)
