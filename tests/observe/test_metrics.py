"""Figures for Prometheus: by the format's own checker, by a real server, and equal to what the ledger says."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from ended import ended
from fencepost_proof.rig.debs import PROMETHEUS, unpack
from fencepost_proof.rig.process import until
from golden import unpacked
from long_ledger import LINEAGE, make
from prometheus import scraping
from prometheus_client.parser import text_string_to_metric_families

import fencepost as fp
from fencepost.cli.main import cli
from fencepost.errors import BadConfig
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Journal
from fencepost.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS, Metrics, Tally, serve
from fencepost.runtime.start import only_looking
from fencepost.spark.progress import lag_by_topic
from fencepost.store import place
from fencepost.store.base import record_name
from fencepost.store.ledger import read

Figures = dict[tuple[str, ...], float]


def of(*checkpoints: Path) -> Metrics:
    return Metrics(lambda: [(one.name, place(one)) for one in checkpoints])


def figures(metrics: Metrics) -> Figures:
    """By name and labels, in the order of the labels' names, without the job's."""
    found: Figures = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name not in {"job", "checkpoint"} and value]
            found[sample.name.removeprefix("fencepost_"), *labels] = sample.value
    return found


def event(kind: Kind, **facts: Any) -> Event:
    return Event(kind=kind, job="j", at="2026-01-01T00:00:00+00:00", pid=1, **facts)


def test_the_figures_are_those_of_the_ledger(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    found = figures(of(checkpoint))
    state = read(checkpoint)
    assert len(state.decisions) == found["epochs_total", "complete"] == found["epoch_duration_seconds_count", "all"]
    assert state.done_through == found["epoch_last_committed",]
    rows = sum(handle.rows for _, decision in state.decisions for handle in decision.handles)
    assert rows == found["rows_total", "out", "db"]
    assert (1.0, 0.0, 1.0) == (
        found["job_condition", "stopped"],
        found["job_condition", "dead"],
        found["checkpoint_readable",],
    )
    assert 0 == found["commits_pending",]
    assert found["state_bytes",] > 0


def test_a_dead_driver_with_a_decided_epoch_has_a_commit_pending(tmp_path: Path) -> None:
    found = figures(of(ended(tmp_path, "decide.after=kill@2")))
    assert (1, 1, 1) == (
        found["commits_pending",],
        found["job_condition", "dead"],
        found["epochs_total", "complete"],
    )


def test_an_open_transaction_has_its_deadline() -> None:
    with unpacked("kafka") as where:
        found = figures(of(where.root / "checkpoint"))
    assert found["transaction_deadline_seconds", "words"] < 0
    assert 20 == found["transaction_timeout_seconds", "words"]


def test_a_checkpoint_that_is_damaged_or_gone_is_a_figure_and_not_a_failure(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "damaged", 20)
    record = checkpoint / record_name(LINEAGE, 9)
    record.write_bytes(record.read_bytes()[:-4])
    assert 0 == figures(of(checkpoint))["checkpoint_readable",]
    assert 0 == figures(of(tmp_path / "gone"))["checkpoint_readable",]


def test_counters_only_grow_while_the_job_goes_on(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    metrics = of(checkpoint)
    before = figures(metrics)
    Journal(checkpoint).note(event(Kind.RESTARTED, code="driver_died"))
    Journal(checkpoint).note(event(Kind.FENCED, code="fenced"))
    Journal(checkpoint).note(event(Kind.COMMITTED, epoch=1, sink="db", units=0, rows=0, what="in_doubt"))
    after = figures(metrics)
    assert (1, 1, 1) == (
        after["restarts_total", "driver_died"],
        after["fenced_total",],
        after["commits_total", "retried", "db"],
    )
    assert after == figures(metrics), "what was counted is not counted again"
    for name, value in before.items():
        if name[0].endswith("_total"):
            assert after[name] >= value


def test_an_epoch_that_recovery_reports_again_is_counted_once() -> None:
    tally = Tally()
    for again in (None, True):
        tally.take(event(Kind.COMPLETE, epoch=1, rows=5, seconds=0.2, again=again))
    assert 1 == sum(tally.took["all"].counts)


def test_rows_that_recovery_commits_again_are_counted_once() -> None:
    tally = Tally()
    tally.take(event(Kind.COMMITTED, epoch=1, sink="db", units=1, rows=5))
    tally.take(event(Kind.STARTED))
    tally.take(event(Kind.COMMITTED, epoch=1, sink="db", units=1, rows=5))
    assert ({("db", "ok"): 1, ("db", "already"): 1}, 5) == (dict(tally.commits), tally.written["db"])
    tally.take(event(Kind.COMMITTED, epoch=2, sink="db", units=1, rows=3, what="in_doubt"))
    tally.take(event(Kind.COMMITTED, epoch=2, sink="db", units=1, rows=4))
    assert (3, 12) == (tally.commits["db", "ok"], tally.written["db"])


def test_dead_letters_are_counted_apart_and_are_there_before_the_first(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    metrics = of(checkpoint)
    assert 0 == figures(metrics)["dead_letters_total", "db"]
    for dead in (True, True, None):  # the second is recovery's, which commits again what was there
        Journal(checkpoint).note(event(Kind.COMMITTED, epoch=90, sink="db", units=1, rows=5, dead=dead))
    assert 5 == figures(metrics)["dead_letters_total", "db"]


@pytest.mark.parametrize(
    ("latest", "end", "behind"),
    [
        ({"t": {"0": 9, "1": 5}}, {"t": {"0": 4, "1": 5}}, {"t": 5}),
        ({"t": {"0": 9}}, {"t": {"0": 10}}, {"t": 0}),  # read after the report's look at the topic
        ({"t": {"0": 9, "1": 2}}, {"t": {"0": 9}}, {}),  # a partition that is new to the job: not known
        (None, {"logOffset": 3}, {}),
        ({"logOffset": 4}, {"logOffset": 3}, {}),
        (7, 7, {}),
    ],
)
def test_what_spark_reports_of_a_source_says_how_far_it_is_behind(
    latest: Any, end: Any, behind: dict[str, int]
) -> None:
    report = SimpleNamespace(json=lambda: json.dumps({"sources": [{"latestOffset": latest, "endOffset": end}]}))
    query = SimpleNamespace(_jsq=SimpleNamespace(lastProgress=lambda: report))
    assert behind == lag_by_topic(query)
    assert {} == lag_by_topic(SimpleNamespace(_jsq=SimpleNamespace(lastProgress=lambda: None)))


def test_two_checkpoints_of_one_name_are_told_apart(tmp_path: Path) -> None:
    text = of(ended(tmp_path / "a"), ended(tmp_path / "b")).text().decode()
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))


def checked(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*unpack(PROMETHEUS).command("promtool"), *words]
    return subprocess.run(command, input=given, check=False, capture_output=True, timeout=120)


def test_the_format_is_what_prometheus_wants(tmp_path: Path, require: Callable[[str], None]) -> None:
    require("prometheus")
    text = of(ended(tmp_path), make(tmp_path / "long", 30, job='"\\<job>')).text()
    done = checked("check", "metrics", given=text)
    assert (0, b"", b"") == (done.returncode, done.stdout, done.stderr)
    sabotaged = checked("check", "metrics", given=text.replace(b"fencepost_fenced_total", b"fencepost_fenced"))
    assert sabotaged.returncode != 0


def test_the_rules_are_valid_and_name_only_figures_that_there_are(
    tmp_path: Path, require: Callable[[str], None]
) -> None:
    require("prometheus")
    done = CliRunner().invoke(cli, ["metrics", "export", "--to", str(tmp_path / "out")])
    assert 0 == done.exit_code
    rules, board = (Path(line) for line in done.output.splitlines())
    assert 0 == checked("check", "rules", str(rules)).returncode
    (tmp_path / "wrong.yml").write_text(rules.read_text().replace("> 600", "> > 600"))
    assert 0 != checked("check", "rules", str(tmp_path / "wrong.yml")).returncode
    assert [] == unknown_names(rules.read_text() + board.read_text())
    assert ["fencepost_nothing"] == unknown_names("fencepost_nothing > 0")


def unknown_names(text: str) -> list[str]:
    """Figures that rules or a dashboard name and nobody serves."""
    served = {f"fencepost_{name}_total" for name in COUNTERS} | {f"fencepost_{name}" for name in GAUGES}
    served |= {f"fencepost_{name}_{end}" for name in HISTOGRAMS for end in ("bucket", "sum", "count")}
    words = {
        word for word in text.replace("{", " ").replace("[", " ").replace("(", " ").split() if "fencepost_" in word
    }
    named = {word[word.index("fencepost_") :].strip('",)=') for word in words}
    return sorted(named - served)


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    board = json.loads((files("fencepost.cli") / "monitoring" / "fencepost.dashboard.json").read_text())
    assert (None, "fencepost-jobs") == (board["id"], board["uid"])
    assert {"datasource", "job", "sink"} == {one["name"] for one in board["templating"]["list"]}
    assert len(board["panels"]) == len({one["id"] for one in board["panels"]})
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])
    assert board["annotations"]["list"]


def test_files_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "fencepost.rules.yml").write_text("mine")
    done = CliRunner().invoke(cli, ["metrics", "export", "--to", str(tmp_path)])
    assert isinstance(done.exception, BadConfig)
    assert "mine" == (tmp_path / "fencepost.rules.yml").read_text()
    assert 0 == CliRunner().invoke(cli, ["metrics", "export", "--to", str(tmp_path), "--force"]).exit_code
    assert "mine" != (tmp_path / "fencepost.rules.yml").read_text()


@pytest.mark.parametrize("address", ["x", "1:x", "99999", "", "-1"])
def test_what_is_not_a_port_is_refused(address: str) -> None:
    with pytest.raises(BadConfig, match="is not a port"):
        serve(of(), address)


def test_a_job_answers_by_itself_unless_its_file_is_only_looked_at(tmp_path: Path) -> None:
    job = fp.Job("j", checkpoint=ended(tmp_path))
    with only_looking():
        assert 0 == job.metrics(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{job.metrics(0)}/metrics") as answer:
        assert b"fencepost_epochs_total{" in answer.read()


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BadConfig, match="cannot be served"):
        serve(of(), str(taken.getsockname()[1]))


def test_a_real_server_scrapes_what_the_ledger_says_and_its_alert_fires(
    tmp_path: Path, require: Callable[[str], None]
) -> None:
    require("prometheus")
    checkpoint = ended(tmp_path / "job", "decide.after=kill@2")
    one = 'job="stand-in"'
    with scraping(tmp_path, serve(of(checkpoint), "127.0.0.1:0")) as asked:
        until(lambda: ("JobNotRunning", "stand-in") in asked.firing(), "the alert fires")
        done = read(checkpoint).done_through + 1
        assert done == asked.value(f'fencepost_epochs_total{{{one},outcome="complete"}}')
        assert 1 == asked.value(f"fencepost_commits_pending{{{one}}}")
