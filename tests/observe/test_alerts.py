"""Every alert that is shipped fires in a real Prometheus, for the job that deserves it and for no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import long_ledger
import pytest
from ended import ended
from fencepost_proof.rig.process import until
from golden import unpacked
from long_ledger import LINEAGE, make
from prometheus import scraping, shipped_rules

from fencepost.observe.events import Event, Kind
from fencepost.observe.heartbeat import BEAT, this_driver
from fencepost.observe.journal import Journal
from fencepost.observe.metrics import Metrics, serve
from fencepost.protocol.format import digest
from fencepost.protocol.records import Decision, Handle, Number, Record, Redo, decode, encode
from fencepost.store import place
from fencepost.store.base import record_name
from fencepost.store.ledger import read

ASLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")
SCRAPES = 5
"""Each followed by an evaluation: a series has its zero, and a patience of one second is over."""


class Jobs:
    """Checkpoints of jobs that run, as far as anybody can see: with real records, and a heartbeat of this process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places: list[Path] = []

    def running(self, name: str, *, age_s: float = 5.0) -> Path:
        """One whose newest epoch is that old."""
        long_ledger.START = datetime.now(UTC) - timedelta(seconds=age_s + 20)
        self.places.append(make(self.root / name, 20, job=name))
        self.beat(name, 0)
        return self.places[-1]

    def beat(self, name: str, lag: int) -> None:
        """Its driver lives."""
        folder = self.root / name / "fencepost" / "pulse"
        folder.mkdir(exist_ok=True)
        beat = {**asdict(this_driver(name, 1, 19, lag={"orders": lag})), **BEAT.stamp}
        temp = folder / "beat.tmp"
        temp.write_text(json.dumps(beat))
        temp.replace(folder / "beat.json")

    def tell(self, name: str, kind: Kind, **facts: object) -> None:
        """One more event of it."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        Journal(self.root / name).note(Event(kind=kind, job=name, at=at, pid=1, **facts))  # type: ignore[arg-type]


def write_again(checkpoint: Path) -> None:
    """What a driver records when a decided transaction is lost: the same rows under a new handle."""
    newest = decode((checkpoint / record_name(LINEAGE, 21)).read_bytes())
    assert isinstance(newest.body, Decision)
    lost = newest.body.handles[0]
    body = Redo(newest.body.epoch, newest.number, (lost.id,), (Handle("again", lost.sink, lost.rows),))
    record = Record(
        number=Number(22),
        lineage=LINEAGE,
        writer=newest.writer,
        at=newest.at,
        previous=digest((checkpoint / record_name(LINEAGE, 21)).read_bytes()),
        oldest=Number(1),
        body=body,
    )
    (checkpoint / record_name(LINEAGE, 22)).write_bytes(encode(record))


@pytest.mark.long
@pytest.mark.server
def test_every_alert_fires_and_none_for_a_job_that_is_well(
    tmp_path: Path, require: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    require("prometheus")
    monkeypatch.setattr(long_ledger, "START", long_ledger.START)  # put back at the end
    jobs = Jobs(tmp_path)
    for name in ("well", "fenced", "rewritten", "restarted", "letters", "lonely", "behind"):
        jobs.running(name)
    jobs.running("stalled", age_s=3600)
    (tmp_path / "rewritten" / record_name(LINEAGE, 22)).unlink()  # it says that all is done
    damaged = jobs.running("damaged") / record_name(LINEAGE, 9)
    damaged.write_bytes(damaged.read_bytes()[:-4])
    with unpacked("kafka") as golden, subprocess.Popen(ASLEEP) as standby, subprocess.Popen(ASLEEP) as killed:
        jobs.places += [ended(tmp_path / "dead", "decide.after=kill@2"), golden.root / "checkpoint"]
        metrics = Metrics(lambda: [(one.name, place(one)) for one in jobs.places])
        jobs.tell("lonely", Kind.WARM, process=killed.pid)
        jobs.tell("well", Kind.WARM, process=standby.pid)
        broker_job = read(golden.root / "checkpoint").lineage.job
        with scraping(tmp_path, serve(metrics, "127.0.0.1:0")) as asked:
            scrapes = 'count_over_time(fencepost_checkpoint_readable{job="well"}[1h])'
            lag = 0
            kept_alive = [one.name for one in jobs.places if one.parent == tmp_path]

            def after(more: int) -> Callable[[], bool]:
                wanted = (asked.value(scrapes) or 0) + more

                def met() -> bool:
                    nonlocal lag
                    lag += 1
                    for name in kept_alive:
                        jobs.beat(name, lag if name == "behind" else 3)
                    time.sleep(0.2)
                    return (asked.value(scrapes) or 0) >= wanted

                return met

            until(after(SCRAPES), "it scraped")
            jobs.tell("fenced", Kind.FENCED, code="fenced")
            write_again(tmp_path / "rewritten")
            for attempt in range(3):
                jobs.tell("restarted", Kind.RESTARTED, code="driver_died", attempt=attempt)
                jobs.tell("restarted", Kind.RESTARTED, code="epoch_failed", attempt=attempt)
            jobs.tell("well", Kind.RESTARTED, code="driver_died")
            jobs.tell("letters", Kind.COMMITTED, epoch=20, sink="db", rows=3, units=1, dead=True)
            jobs.tell("well", Kind.COMMITTED, epoch=20, sink="db", rows=3, units=1)
            killed.kill()
            until(after(SCRAPES), "it scraped what happened")
            firing = asked.firing()
            standby.kill()
    wanted = {
        ("JobNotRunning", "stand-in"),
        ("CommitsPending", "stand-in"),
        ("EpochsStalled", "stalled"),
        ("CheckpointUnreadable", "damaged"),
        ("TransactionDeadline", broker_job),
        ("Fenced", "fenced"),
        ("Rewrites", "rewritten"),
        ("Restarts", "restarted"),
        ("DeadLetters", "letters"),
        ("SourceLag", "behind"),
        ("StandbyGone", "lonely"),
    }
    shipped = set(re.findall(r"alert: Fencepost(\w+)", shipped_rules()))
    assert (set(), shipped) == (wanted - firing, {alert for alert, _ in wanted})
    assert set() == {one for one in firing if one[1] == "well"}, "the sabotaged twins are all the others"
