"""A real Prometheus watches a job that is killed, started again and fenced: its figures are those of the ledger."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fencepost_proof.rig.process import until
from prometheus import scraping

from fencepost.observe.metrics import Metrics, serve
from fencepost.protocol.records import Writer, decode
from fencepost.store import place
from fencepost.store.base import ledger_folder
from fencepost.store.ledger import read

JOB = Path(__file__).with_name("scraped_job.py")
FENCED = 1


def started(folder: Path, *words: str, supervised: bool = True) -> subprocess.Popen[bytes]:
    run = ["-m", "fencepost", "run"] if supervised else []
    return subprocess.Popen([sys.executable, *run, str(JOB), str(folder), *words], stderr=subprocess.DEVNULL)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.long
@pytest.mark.server
def test_after_kills_restarts_and_a_fence_every_counter_is_what_the_ledger_says(
    tmp_path: Path, require: Callable[[str], None]
) -> None:
    require("prometheus")
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "fencepost").mkdir(parents=True)
    metrics = Metrics(lambda: [("stand-in", place(checkpoint))])
    with scraping(tmp_path, serve(metrics, "127.0.0.1:0")) as asked:
        until(lambda: asked.value("fencepost_build_info") is not None, "it scrapes")
        kills = ("decide.after=kill@2", "vote.after=kill@2", "engine.returned=kill@2")
        with started(tmp_path, "20", *kills) as supervisor:
            assert 0 == supervisor.wait(300)
        with started(tmp_path, "26", "engine.planned=stop@2", supervised=False) as sleeper:
            try:
                until(lambda: is_stopped(sleeper.pid), "the driver sleeps")
                with started(tmp_path, "30", supervised=False) as successor:
                    assert 0 == successor.wait(300)
                sleeper.send_signal(signal.SIGCONT)
                assert FENCED == sleeper.wait(300)
            finally:
                sleeper.kill()

        state = read(checkpoint)
        records = [decode(path.read_bytes()) for path in (checkpoint / ledger_folder(state.lineage_id)).glob("*.json")]
        drivers = sum(isinstance(record.body, Writer) for record in records)
        rows = sum(handle.rows for _, decision in state.decisions for handle in decision.handles)
        assert (15, 30, len(kills) + 3) == (len(state.decisions), rows, drivers), "the ledger is of the whole run"
        wanted = {
            'fencepost_epochs_total{outcome="complete"}': len(state.decisions),
            'fencepost_epoch_duration_seconds_count{phase="all"}': len(state.decisions) - 1,  # recovery ended one
            'fencepost_rows_total{sink="db"}': rows,
            'fencepost_commits_total{sink="db",result="ok"}': len(state.decisions),
            "sum(fencepost_restarts_total)": len(kills),
            "fencepost_recovery_duration_seconds_count": drivers,
            "fencepost_writer": state.writer,
            "fencepost_fenced_total": 1,
            "fencepost_commits_pending": 0,
            "fencepost_rewrites_total": 0,
        }
        until(lambda: asked.value("fencepost_fenced_total") == 1, "the fence was scraped")
        assert wanted == {query: asked.value(query) for query in wanted}
