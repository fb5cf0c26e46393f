"""`fencepost state`: real checkpoints of four kinds, looked into without a trace."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from streams import Place, drop_json

import fencepost as fp
from fencepost.admin.state import look, read_state
from fencepost.cli.main import cli
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder with its time and its sum."""
    return {
        str(path): f"{path.stat().st_mtime_ns} {path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in [folder, *folder.rglob("*")]
    }


def said(*arguments: Any, code: int = 0) -> str:
    """What a command prints; a refusal in its own words."""
    result = CliRunner().invoke(cli, ["state", *map(str, arguments)])
    if isinstance(result.exception, FencepostError):
        return str(result.exception)
    assert code == result.exit_code, result.output
    return result.stdout


def told(*arguments: Any) -> Any:
    return json.loads(said(*arguments, "--json"))


@pytest.fixture(scope="module")
def checkpoints(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One checkpoint of each kind, all in one folder."""
    root = tmp_path_factory.mktemp("state")
    jobs = {}

    def place(kind: str) -> tuple[Place, fp.Job]:
        (root / kind).mkdir()
        made = Place(root / kind)
        jobs[kind] = made.job(spark)
        return made, jobs[kind]

    def rows(job: fp.Job, folder: Path, schema: str) -> Any:
        return job.read(fp.Files(str(folder), format="json", schema=schema, max_files_per_epoch=1))

    def sink(of: Place) -> fp.SQLite:
        return fp.SQLite(str(of.database), table="out")

    counts, _ = place("counts")
    counts.say("a b a", "b c", "a d")
    jobs["counts"] = counts.counting(spark)

    windows, job = place("windows")
    first, second = (
        {"at": "2026-01-01T00:00:10Z", "user": "anna", "n": 1},
        {"at": "2026-01-01T00:01:10Z", "user": "bob"},
    )
    drop_json(windows.input, first, second | {"n": 2}, second | {"user": "anna", "n": 4})
    late = rows(job, windows.input, "at TIMESTAMP, user STRING, n BIGINT").withWatermark("at", "1 hour")
    sums = late.groupBy("user", spark_window("at")).sum("n").selectExpr("user", "window.start", "`sum(n)` AS n")
    job.write(sums, sink(windows))

    joined, job = place("joined")
    drop_json(joined.root / "l", {"k": "x", "at": "2026-01-01T00:00:10Z", "a": 1}, {"k": "y", "at": None, "a": 2})
    drop_json(joined.root / "r", {"j": "x", "on": "2026-01-01T00:00:15Z", "b": 10})
    left = rows(job, joined.root / "l", "k STRING, at TIMESTAMP, a BIGINT").withWatermark("at", "1 hour")
    right = rows(job, joined.root / "r", "j STRING, on TIMESTAMP, b BIGINT").withWatermark("on", "1 hour")
    near = (left.k == right.j) & (right.on >= left.at) & (right.on <= left.at + spark_hour())
    job.write(left.join(right, near).select("k", "a", "b"), sink(joined))

    keyed, job = place("keyed")
    drop_json(keyed.input, {"user": "anna", "n": 1}, {"user": "bob", "n": 2})
    drop_json(keyed.input, {"user": "anna", "n": 5})
    added = fp.map_with_state(
        rows(job, keyed.input, "user STRING, n BIGINT"), by="user", state="total BIGINT", output="total BIGINT"
    )(lambda record, state: ((record.n,), ((state.total if state else 0) + record.n,)))
    job.write(added, sink(keyed))

    plain, job = place("plain")
    plain.say("a")
    job.write(plain.text(job), sink(plain))
    for job in jobs.values():
        job.run(until="available")
    return {kind: root / kind / "checkpoint" for kind in jobs}


def spark_window(column: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.window(column, "1 minute")


def spark_hour() -> Any:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.expr("INTERVAL 1 HOUR")


def test_every_kind_of_state_is_read_and_nothing_is_written(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    before = {kind: tree(path) for kind, path in checkpoints.items()}

    counts = checkpoints["counts"]
    listed = told("ls", counts, "--count")
    assert ([0, 1, 2], "stateStoreSave", 2) == (
        listed["epochs"],
        listed["operators"][0]["name"],
        listed["operators"][0]["partitions"],
    )
    assert [{"name": "state", "kind": "state", "keys": 4}] == listed["operators"][0]["parts"]
    assert all(listed["operators"][0]["bytes"])
    assert max(listed["operators"][0]["bytes"]) > 0 < listed["operators"][0]["skew"]
    assert '{"word": "a"}  {"count": 3}\n' == said("get", counts, "a")
    assert '{"word": "a"}  {"count": 2}\n' == said("get", counts, "word=a", "--epoch", 0)
    assert "" == said("get", counts, "nobody", code=1)
    changes = told("diff", counts, "--epochs", 0, 2)["state"]["state"]
    assert (2, 0, 2) == (changes["added"], changes["removed"], changes["changed"])
    assert {"what": "changed", "key": {"word": "b"}, "before": {"count": 1}, "after": {"count": 2}} in changes["keys"]
    assert "state: 0 added, 2 removed, 2 changed\n" == said("diff", counts, "--epochs", 2, 0, "--limit", 0)

    windows = checkpoints["windows"]
    start = "2026-01-01T00:01:00.000000Z"
    keyed = {"user": "anna", "window": {"start": start, "end": start.replace("01:00.", "02:00.")}}
    for key in (("anna", "2026-01-01T00:01"), ("window=2026-01-01T00:01:00Z", "user=anna")):
        assert [{"key": keyed, "value": {"sum": 4}}] == told("get", windows, *key)["state"]["state"]
    assert 2 == len(told("get", windows, "user=anna")["state"]["state"])

    joined = checkpoints["joined"]
    assert ["left", "right"] == [part["name"] for part in told("ls", joined)["operators"][0]["parts"]]
    found = told("get", joined, "x")["state"]
    assert [1, 10] == [found["left"][0]["value"][0]["a"], found["right"][0]["value"][0]["b"]]
    assert ["right"] == list(told("get", joined, "x", "--side", "right")["state"])

    part = told("ls", checkpoints["keyed"])["operators"][0]["parts"][0]
    found = told("get", checkpoints["keyed"], "anna", "--var", part["name"])["state"][part["name"]]
    assert 6 in found[0]["value"].values()
    assert [] == told("ls", checkpoints["plain"])["operators"]

    for name in ("out.parquet", "out.json", "out.csv"):
        assert f"{tmp_path / name}\n" == said("export", windows, "--to", tmp_path / name, "--epoch", 0)
    assert 3 == pyarrow.parquet.read_table(tmp_path / "out.parquet").num_rows
    assert {"anna", "bob"} == {
        json.loads(line)["key"]["user"] for line in (tmp_path / "out.json").read_text().splitlines()
    }
    table = pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert ["key.user", "key.window.start", "key.window.end", "value.sum"] == table.column_names
    assert 7 == sum(table["value.sum"].to_pylist())

    assert before == {kind: tree(path) for kind, path in checkpoints.items()}


def test_what_cannot_be_shown_is_refused_with_what_can(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    counts, joined = checkpoints["counts"], checkpoints["joined"]
    assert "epochs 0 to 2" in said("get", counts, "a", "--epoch", 7)
    assert "Choose one of: 0 (stateStoreSave)" in said("get", counts, "a", "--operator", 3)
    assert "Choose one of: left, right" in said("get", joined, "x", "--side", "middle")
    assert "which_view" in said("export", joined, "--to", tmp_path / "x.json")
    assert "The job has no state" in said("get", checkpoints["plain"], "a")
    assert "window.start (timestamp)" in (bad := said("get", checkpoints["windows"], "anna", "yesteryear"))
    assert "yesteryear" not in bad
    assert "bad_key" in said("get", counts, "a", "b")
    assert "no_ledger" in said("ls", tmp_path)
    assert "inside_the_checkpoint" in said("export", counts, "--to", counts / "x.json")
    (tmp_path / "there.json").touch()
    assert "file_exists" in said("export", counts, "--to", tmp_path / "there.json")


def test_an_epoch_that_is_undecided_undone_or_retired_is_not_shown(
    spark: SparkSession, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoints["counts"], copy)
    shutil.copy(copy / "offsets" / "2", copy / "offsets" / "3")
    assert "Epoch 3 is not decided" in said("get", copy, "a", "--epoch", 3)
    assert '{"word": "a"}  {"count": 3}\n' == said("get", copy, "a")
    done = max(copy.glob("fencepost/*/ledger/*.json"))
    assert '"kind":"done"' in done.read_text()
    done.unlink()
    assert "Epoch 2 is decided, but not yet recorded as done" in said("get", copy, "a", "--epoch", 2)
    assert '{"word": "a"}  {"count": 2}\n' == said("get", copy, "a")

    found = look(copy)
    for file in copy.glob("state/0/*/1_*"):
        file.unlink()
    with pytest.raises(FencepostError, match="state_unreadable"):
        read_state(spark, found, found.operator(None), found.operators[0].views[0], epoch=0)
    for log in ("offsets", "commits"):
        (copy / log / "0").unlink()
    with pytest.raises(FencepostError, match=r"(?s)epoch_retired.*epochs 1 to 1"):
        read_state(spark, found, found.operator(None), found.operators[0].views[0], epoch=0)


def test_a_new_process_finds_the_jobs_own_settings_and_prints_nothing_else(checkpoints: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "fencepost", "state", "get", str(checkpoints["keyed"]), "bob", "--json"]
    before = tree(checkpoints["keyed"])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "" == done.stderr
    assert [{"user": "bob"}] == [row["key"] for rows in json.loads(done.stdout)["state"].values() for row in rows]
    assert before == tree(checkpoints["keyed"])
