"""No secret and no row's value is ever said: not in logs, journal, ledger, pulse, registry, errors, plans or output.

A job is given canaries for secrets and rows, and made to succeed, to fail in a sink, to fail in a task, and to start
again. Then everything that it said anywhere is searched, every page of `fencepost ui` included. A sink that does leak
is caught by the same search.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from addresses import read_all
from fencepost_proof.rig.postgres import Postgres
from streams import Place

import fencepost as fp
from fencepost.errors import EpochFailed, FencepostError
from fencepost.observe import registry
from fencepost.observe.events import Event
from fencepost.observe.journal import JsonFormatter

pytestmark = pytest.mark.spark

PASSWORD = "canary-passw0rd/å"  # noqa: S105
SASL = "canary-sasl-5ecret"
S3_KEY = "canary-s3-k3y"
ROW = "canaryrow4711"
CANARIES = {
    "the password": ("canary-passw0rd", urllib.parse.quote(PASSWORD)),
    "sasl": (SASL,),
    "s3": (S3_KEY,),
    "a row": (ROW,),
}


def leaks(said: Mapping[str, str]) -> list[str]:
    """Where a canary sings."""
    return [
        f"{place}: {name}"
        for place, text in said.items()
        for name, words in CANARIES.items()
        if any(word.lower() in text.lower() for word in words)
    ]


def in_files(root: Path) -> dict[str, str]:
    """All that a checkpoint holds, but for Spark's state, and rows that wait for a sink."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and not name.startswith("state/") and "/staged/" not in name:
            found[name] = path.read_bytes().decode(errors="replace")
    assert any("/ledger/" in name for name in found)
    assert "fencepost/journal.jsonl" in found
    return found


def on_the_command_line(*commands: list[str]) -> dict[str, str]:
    """What reading verbs print."""
    found = {}
    for words in commands:
        for more in ([], ["--json"]):
            command = [sys.executable, "-m", "fencepost", *words, *more]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
            found[" ".join(["fencepost", *words, *more])] = done.stdout + done.stderr
            assert done.stdout
    return found


def in_logs(records: Iterable[logging.LogRecord]) -> dict[str, str]:
    """As text and as JSON, with whatever an exception brings along in our own loggers."""
    plain, lines = logging.Formatter(), JsonFormatter()
    return {
        f"log {number} of {record.name}": plain.format(record) + lines.format(record)
        for number, record in enumerate(records)
        if record.name != "SQLQueryContextLogger"  # pyspark's own, of the plan's errors
    }


def of_an_error(error: BaseException) -> dict[str, str]:
    """Its text, and the texts of ours behind it; what a library raised is chained for a debugger, and not printed."""
    assert isinstance(error, FencepostError)
    return {"error": str(error), "repr": repr(error), "args": repr(error.args)}


def of_a_job(job: fp.Job) -> dict[str, str]:
    """What it says of itself, and its plans."""
    plans = {
        f"plan of {name}": frame._jdf.queryExecution().toString() + repr(frame) + repr(sink)
        for name, (frame, sink) in job._branches.items()
    }
    return {"repr": repr(job), "html": job._repr_html_(), "check": repr(job.check()), **plans}


def in_registry() -> dict[str, str]:
    return {f"registry {path.name}": path.read_text() for path in (registry.home() / "jobs").iterdir()}


def listening(job: fp.Job) -> list[Event]:
    told: list[Event] = []
    for listen in (job.on_complete, job.on_failure, job.on_restart):
        listen(told.append)  # type: ignore[operator]
    return told


def dsn(server: Postgres) -> str:
    """The server trusts whoever comes; the password is there for all that."""
    plain = urllib.parse.urlsplit(server.dsn)
    return plain._replace(netloc=plain.netloc.replace("@", f":{urllib.parse.quote(PASSWORD, safe='')}@")).geturl()


def test_a_job_that_succeeds_fails_and_starts_again_says_no_secret_and_no_row(
    spark: Any, postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    place.say(f"{ROW} 1", f"{ROW} 2", f"{ROW} poison")
    sent: list[int] = []

    def send(context: fp.EpochContext, batches: Any) -> None:  # type: ignore[name-defined]
        rows = [row for batch in batches for row in batch.to_pylist()]
        sent.append(len(rows))
        if len(sent) == 2:  # once, after the decision
            raise ConnectionError(f"cannot send {rows} with {PASSWORD}")

    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "fencepost")
    job = place.job(spark, restart=fp.FixedDelay(attempts=1, delay="0 ms"))
    told = listening(job)
    logins = {"kafka.sasl.jaas.config": f'x required password="{SASL}";', "fs.s3a.secret.key": S3_KEY}
    lines = job.read(fp.Files(str(place.input), format="text", max_files_per_epoch=1, options=logins))
    # Spark's own message quotes the row.
    fails = lines.selectExpr("IF(value LIKE '%poison', CAST(value AS INT), 1) AS number", "value")
    job.write(fails, fp.Postgres("lines", dsn=dsn(postgres), name="pg"))
    job.write(lines, fp.WriteAheadLog(send, name="api", idempotent=True))
    with pytest.raises(FencepostError) as failed:
        job.run()
    assert "restarts_spent" == failed.value.code
    assert len(sent) >= 3, "the sink did not fail"
    assert {"complete", "failed", "restarted"} <= {event.kind.value for event in told}
    root = str(place.checkpoint)
    said = {
        **in_files(place.checkpoint),
        **on_the_command_line(["status", root], ["status"], ["epochs", "list", root], ["epochs", "show", root, "1"]),
        **in_logs(caplog.records),
        **of_an_error(failed.value),
        **of_a_job(job),
        **in_registry(),
        **read_all(place.checkpoint),
        "callbacks": json.dumps([event.plain for event in told]),
    }
    assert any(name.startswith("log ") for name in said)
    assert [] == leaks(said)


SINKS: Mapping[str, Callable[[], fp.Sink]] = {
    "postgres": lambda: fp.Postgres("t", dsn=f"postgresql://u:{urllib.parse.quote(PASSWORD, safe='')}@127.0.0.1:1/d"),
    "mysql": lambda: fp.MySQL("t", host="127.0.0.1", port=1, user="u", password=PASSWORD, database="d"),
    "redis": lambda: fp.Redis(
        f"redis://u:{urllib.parse.quote(PASSWORD, safe='')}@127.0.0.1:1/0", key="value", unique_key=True, prefix="t:"
    ),
}


@pytest.mark.parametrize("kind", SINKS)
def test_a_target_that_cannot_be_reached_is_named_without_the_way_to_log_in(
    kind: str, spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fencepost")
    place = Place(tmp_path)
    place.say(ROW)
    job = place.job(spark)
    told = listening(job)
    with pytest.raises(FencepostError) as failed:
        job.write(place.text(job).selectExpr("value", "1 AS n"), SINKS[kind]()).run(until="available")
    assert "target_silent" == failed.value.code
    said = {**of_an_error(failed.value), **of_a_job(job), **in_logs(caplog.records)}
    assert [] == leaks({**said, "callbacks": json.dumps([event.plain for event in told])})


def test_the_plan_of_a_source_with_a_login_does_not_show_it(
    spark: Any, require: Callable[[str], None], tmp_path: Path
) -> None:
    require("kafka")
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    source = fp.Kafka("t", servers="127.0.0.1:1", security={**security, "sasl.password": SASL})
    job = Place(tmp_path).job(spark)
    frame = job.read(source)
    said = {"plan": frame._jdf.queryExecution().toString(), "frame": repr(frame), "source": repr(source)}
    assert "kafka.sasl.mechanism=PLAIN" in said["plan"]
    assert [] == leaks(said)


class Leaky(fp.SQLite):
    """What no sink may do: it puts its password, and a row, into its error."""

    def session(self, job: str) -> Any:
        found = super().session(job)

        def verify(epoch: int, handles: object) -> None:
            raise EpochFailed("no_login", f"Cannot log in with {PASSWORD} to write {ROW}.", next="Mend it.")

        found.verify = verify  # type: ignore[method-assign]
        return found


def test_a_sink_that_leaks_is_caught_wherever_its_error_goes(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fencepost")
    place = Place(tmp_path)
    place.say("harmless")
    job = place.job(spark)
    told = listening(job)
    with pytest.raises(FencepostError) as failed:
        job.write(place.text(job), Leaky(place.database, table="lines")).run(until="available")
    key = registry.key_of(place.checkpoint)
    journal = {name: text for name, text in in_files(place.checkpoint).items() if "journal" in name}
    for said in (
        of_an_error(failed.value),
        journal,
        in_logs(caplog.records),
        {"callbacks": json.dumps([event.plain for event in told], ensure_ascii=False)},
        on_the_command_line(["status", str(place.checkpoint)]),
        {path: text for path, text in read_all(place.checkpoint).items() if path.endswith(f"jobs/{key}")},
        {path: text for path, text in read_all(place.checkpoint).items() if path.endswith("/live")},
        {path: text for path, text in read_all(place.checkpoint).items() if path.endswith(("/starts", "/exceptions"))},
    ):
        assert {"the password", "a row"} == {leak.rsplit(": ", 1)[1] for leak in leaks(said)}
