"""Every page and every address of the API, on checkpoints that real drivers left."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from addresses import PAGES, check_page, codes, everything, shown
from browser import get
from ended import ended, tree
from golden import unpacked
from long_ledger import LINEAGE, make

from fencepost.admin import state as states
from fencepost.cli.state import state as state_command
from fencepost.errors import BadConfig, Reason, Retryable
from fencepost.observe import journal, registry
from fencepost.observe.archive import JobArchive
from fencepost.observe.events import Event, Kind
from fencepost.observe.health import DOUBT
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.observe.journal import path_of
from fencepost.store.base import record_name
from fencepost.store.parts import parts_of, sizes, state_sizes
from fencepost.supervise.supervisor import Ending
from fencepost.ui import api
from fencepost.ui.application import HEADERS, application
from fencepost.ui.listener import listen
from fencepost.ui.shelf import Shelf


@pytest.mark.parametrize("fault", ["", "decide.after=kill@2", "decide.before=kill@2", "vote.before=kill@1"])
def test_every_address_answers_for_every_kind_of_end(fault: str, tmp_path: Path) -> None:
    checkpoint = ended(tmp_path, fault)
    before = tree(checkpoint)
    app = shown(checkpoint)
    for path in everything(checkpoint):
        if "vote" in fault and path.endswith("/1"):
            continue  # there is no epoch 1
        answer = get(app, path)
        assert 200 == answer.status, path
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        if path.startswith("/api/"):
            assert answer.json
        else:
            check_page(answer)
    assert before == tree(checkpoint)


@pytest.mark.parametrize("name", ["stopped", "undecided", "heap", "kafka", "postgres"])
def test_every_address_answers_for_checkpoints_of_real_jobs(name: str) -> None:
    with unpacked(name) as where:
        checkpoint = where.root / "checkpoint"
        app = shown(checkpoint)
        for path in everything(checkpoint):
            answer = get(app, path)
            assert 200 == answer.status, (path, answer.text[-600:])
            if not path.startswith("/api/"):
                check_page(answer)
        state = get(app, f"/jobs/{registry.key_of(checkpoint)}/state").text
        assert "stateStoreSave" in state
        assert "golden" in get(app, "/").text


def test_a_page_names_the_command_that_looks_up_a_key() -> None:
    with unpacked("stopped") as where:
        checkpoint = where.root / "checkpoint"
        page = get(shown(checkpoint), f"/jobs/{registry.key_of(checkpoint)}/state").text
        (commands,) = re.findall(r'aria-label="The command">([^<]*)</pre>', page)
        typed = [shlex.split(html.unescape(line)) for line in commands.strip().splitlines()]
        operators = states.look(checkpoint).operators
        assert len(operators) == len(typed)
        for words in typed:
            assert ["fencepost", "state", "get", str(checkpoint), "COLUMN=VALUE"] == words[:5]
            assert state_command.commands["get"].make_context("get", words[3:])


def test_dead_letters_are_counted_once_by_sink(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    assert "None, as far as the journal goes back." in get(app, f"/jobs/{key}/sinks").text
    told = {"job": "stand-in", "at": "2030-01-01T00:00:00+00:00", "pid": 1, "sink": "db", "units": 1, "dead": True}
    for epoch, rows, what in ((2, 3, None), (2, 3, None), (3, 4, None), (4, 9, DOUBT)):
        journal.Journal(checkpoint).note(Event(kind=Kind.COMMITTED, epoch=epoch, rows=rows, what=what, **told))
    fresh = shown(checkpoint)
    (found,) = get(fresh, f"/api/v1/jobs/{key}/sinks").json["sinks"]
    assert 7 == found["dead_letters"], "not twice what recovery committed again, nor what may not be there"
    assert "<strong>db</strong> got 7 dead letters" in get(fresh, f"/jobs/{key}/sinks").text


def test_a_page_says_what_is_read_decided_and_in_the_sinks(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path, "decide.after=kill@2")
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    page = get(app, f"/jobs/{key}").text
    assert "Decided rows are on their way into a sink" in page
    assert "dead" in page
    told = get(app, f"/api/v1/jobs/{key}/sinks").json
    assert [("db", 1, 0, False)] == [(s["name"], s["decided"], s["confirmed"], s["meets"]) for s in told["sinks"]]
    job = get(app, f"/api/v1/jobs/{key}").json
    assert ("dead", 0, key, "stand-in") == (job["condition"], job["epoch"], job["id"], job["name"])
    epoch = get(app, f"/api/v1/jobs/{key}/checkpoints/details/1").json
    assert (1, "IN_PROGRESS", "decided", 2) == (epoch["id"], epoch["status"], epoch["standing"], epoch["rows"])


def test_the_document_has_every_address_and_no_other(tmp_path: Path) -> None:
    app = shown(ended(tmp_path))
    document = get(app, "/api/v1/openapi.json").json
    served = {route.path.removeprefix(api.BASE) for route in api.routes(Shelf(registered=False), codes)}
    assert served - {"/openapi.json"} == set(document["paths"])
    for path, methods in document["paths"].items():
        assert ["get"] == list(methods)
        named = {one["name"] for one in methods["get"]["parameters"] if one["in"] == "path"}
        assert set(re.findall(r"{(\w+)}", path)) == named


def test_a_long_history_is_paged_and_filtered(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "checkpoint", 400)
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    first = get(app, f"/jobs/{key}/epochs?count=20&sink=db").text
    assert "/epochs/398" in first
    (older,) = re.findall(r'href="(\?[^"]*before=[^"]*)" rel="next"', first)
    assert "sink=db" in older
    second = get(app, f"/jobs/{key}/epochs{older.replace('&amp;', '&')}").text
    assert "/epochs/398" not in second
    assert "/epochs/375" in second
    found = get(app, f"/api/v1/jobs/{key}/checkpoints?count=3&before=100&from=10&to=19").json
    assert [99, 98, 97] == [one["id"] for one in found["history"]]
    assert (97, 0, 399) == (found["before"], found["oldest"], found["newest"])
    assert 10 == found["summary"]["all"]["count"]


def calls_of(work: Callable[[], object]) -> int:
    """How many functions it calls: a measure of work that does not depend on who else is busy."""
    count = 0

    def note(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_the_state_of_a_long_ledger_is_looked_at_without_going_through_its_records(tmp_path: Path) -> None:
    found = {}
    for epochs in (300, 3000):
        checkpoint = make(tmp_path / str(epochs), epochs)
        ledger, _ = JobArchive(checkpoint).plan()
        found[epochs] = (
            calls_of(partial(states.look, checkpoint, ledger)),
            calls_of(partial(parts_of, checkpoint, epochs - 1, ledger)),
        )
    assert found[3000][0] < found[300][0] + 300
    assert found[3000][1] > found[300][1] + 2700, "the count sees it where every record is listed"


@pytest.mark.parametrize("name", ["stopped", "heap", "kafka"])
def test_the_state_that_is_measured_is_that_of_all_parts(name: str) -> None:
    with unpacked(name) as where:
        checkpoint = where.root / "checkpoint"
        ledger, _ = JobArchive(checkpoint).plan()
        measured = state_sizes(checkpoint, ledger.done_through, ledger)
        assert sizes(checkpoint, parts_of(checkpoint, ledger.done_through, ledger)) == measured
        assert sum(measured.values()) > 0


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/jobs/000000000000", 404, "unknown_job"),
        ("/jobs/KEY/epochs/7", 404, "unknown_epoch"),
        ("/jobs/KEY/epochs/-1", 400, "bad_query"),
        ("/jobs/KEY/epochs/1.5", 400, "bad_query"),
        ("/jobs/KEY/epochs/99999999999999999999", 400, "bad_query"),
        ("/jobs/KEY/epochs/%D9%A1", 400, "bad_query"),
        ("/jobs/KEY/epochs?before=x", 400, "bad_query"),
        ("/jobs/KEY/epochs?count=x", 400, "bad_query"),
        ("/jobs/KEY/epochs?standing=%3Cscript%3E", 400, "bad_query"),
        ("/explain/nothing", 404, "unknown_code"),
        ("/nothing", 404, "no_page"),
        ("/jobs/KEY/nothing", 404, "no_page"),
        ("/api/v1/jobs/000000000000", 404, "unknown_job"),
        ("/api/v1/jobs/KEY/checkpoints/details/7", 404, "unknown_epoch"),
        ("/api/v1/jobs/KEY/checkpoints?before=-4", 400, "bad_query"),
        ("/api/v1/nothing", 404, "no_page"),
    ],
)
def test_what_is_not_there_or_not_valid_is_said(path: str, status: int, code: str, tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    answer = get(shown(checkpoint), path.replace("KEY", registry.key_of(checkpoint)))
    assert status == answer.status
    if path.startswith("/api/"):
        assert code == answer.json["error"]["code"]
        assert all(answer.json["error"][part] for part in ("what", "data", "next"))
    else:
        check_page(answer)
        assert code in answer.text


def test_a_checkpoint_that_is_gone_is_said_and_its_last_state_is_shown(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    key = registry.key_of(checkpoint)
    fresh, seen = shown(checkpoint), shown(checkpoint)
    assert 200 == get(seen, f"/jobs/{key}").status
    shutil.rmtree(checkpoint)
    answer = get(fresh, f"/jobs/{key}")
    assert 404 == answer.status
    assert "The folder does not exist." in answer.text
    assert 404 == get(seen, f"/jobs/{key}/epochs").status


def test_a_store_that_does_not_answer_is_said_with_what_was_last_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = ended(tmp_path)
    key = registry.key_of(checkpoint)
    monkeypatch.setattr("fencepost.ui.shelf.FRESH_S", 0.0)
    app = shown(checkpoint)
    assert "stopped cleanly" in get(app, f"/jobs/{key}").text

    def silent(self: JobArchive, recent: int = 0) -> None:
        raise Retryable("store_silent", "The checkpoint's store does not answer: planted.", next="Wait.")

    monkeypatch.setattr(JobArchive, "summary", silent)
    page = get(app, f"/jobs/{key}")
    assert 200 == page.status
    assert "does not answer: planted" in page.text
    assert "What follows was read" in page.text
    assert "store_silent" in get(app, "/").text
    assert "store_silent" == get(app, f"/api/v1/jobs/{key}").json["problem"]["code"]
    never = shown(checkpoint)
    answer = get(never, f"/jobs/{key}")
    assert (503, True) == (answer.status, "does not answer: planted" in answer.text)


def test_after_a_failure_a_page_says_whether_the_job_was_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.ui.shelf.FRESH_S", 0.0)
    checkpoint = ended(tmp_path, "decide.after=kill@2")
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    now, advice = datetime.now(UTC).isoformat(), Ending("", Reason.DIED, "", 1).next
    told = {"job": "stand-in", "at": now, "pid": os.getpid(), "code": "driver_died", "next": advice}

    def says() -> str:
        (text,) = re.findall(r"<dt>Next</dt><dd>([^<]*)</dd></dl>", get(app, f"/jobs/{key}").text)
        return str(text)

    journal.Journal(checkpoint).note(Event(kind=Kind.DIED, what="It was killed.", seconds=3600.0, **told))
    assert f"Wait: it will be started again by itself. If it fails again: {advice}" == says()
    PULSE.add(str(checkpoint), lambda: this_driver("stand-in", 1, 1))
    try:
        assert says().startswith("Nothing: it was started again, and is running.")
    finally:
        PULSE.remove(str(checkpoint))
    journal.Journal(checkpoint).note(Event(kind=Kind.GAVE_UP, what="It was killed.", **told))
    assert advice == says()


def test_a_damaged_ledger_is_said(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "checkpoint", 30)
    record = checkpoint / record_name(LINEAGE, 12)
    record.write_bytes(record.read_bytes()[:-5])
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    page = get(app, f"/jobs/{key}")
    check_page(page)
    assert "Ledger record 12 is damaged" in page.text
    assert "a person is needed" in get(app, "/").text
    for path in ("/epochs", "/state", "/guarantee", "/epochs/3"):
        answer = get(app, f"/jobs/{key}{path}")
        check_page(answer)
        assert (409, True) == (answer.status, "Ledger record 12 is damaged" in answer.text)


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    path_of(checkpoint).unlink()
    path_of(checkpoint).mkdir()
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    assert "The journal cannot be read" in get(app, f"/jobs/{key}").text
    starts = get(app, f"/jobs/{key}/starts").text
    assert "The journal cannot be read" in starts
    assert "writer 1" in starts


def test_a_page_without_jobs_says_how_to_begin() -> None:
    assert "fencepost run FILE" in get(shown(), "/").text


def test_jobs_of_this_machine_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_HOME", str(tmp_path / "home"))
    checkpoint = ended(tmp_path)
    registry.note("stand-in", checkpoint)
    shelf = Shelf()
    assert [registry.key_of(checkpoint)] == [job.key for job in shelf.jobs()]
    assert 200 == get(application(shelf, codes), f"/jobs/{registry.key_of(checkpoint)}").status


def test_what_moves_is_sent_once_and_a_browser_that_leaves_is_forgotten(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    for path, parts in (("/live", {"live-jobs"}), (f"/jobs/{key}/live", {"live-head", "live-now", "live-bars"})):
        answer = get(app, path, most=2)
        assert (200, "text/event-stream") == (answer.status, answer.headers["content-type"].partition(";")[0])
        (told,) = re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)
        assert parts <= json.loads(told).keys()
        page = get(app, path.removesuffix("/live") or "/").text
        for part in json.loads(told):
            assert f'id="{part}"' in page, "the page has a place for it"


def test_prometheus_can_scrape_it(tmp_path: Path) -> None:
    app = shown(ended(tmp_path))
    answer = get(app, "/metrics")
    assert (200, "text/plain; version=0.0.4; charset=utf-8") == (answer.status, answer.headers["content-type"])
    assert 'fencepost_epochs_total{checkpoint="' in answer.text
    assert 'outcome="complete"} 2.0' in answer.text


def test_too_many_open_pages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.ui.application.STREAMS", 0)
    assert 503 == get(shown(ended(tmp_path)), "/live").status


def test_a_page_that_fails_says_no_more_than_the_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = ended(tmp_path)
    app, key = shown(checkpoint), registry.key_of(checkpoint)

    def broken(self: JobArchive) -> None:
        raise ZeroDivisionError("canary-secret")

    monkeypatch.setattr(JobArchive, "timeline", broken)
    answer = get(app, f"/jobs/{key}/starts")
    check_page(answer)
    assert (500, True) == (answer.status, "ZeroDivisionError" in answer.text)
    assert "canary" not in answer.text
    told = get(app, f"/api/v1/jobs/{key}/exceptions")
    assert (500, "page_failed") == (told.status, told.json["error"]["code"])
    assert "canary" not in told.text


def test_a_port_in_use_is_said() -> None:
    with listen(0) as taken, pytest.raises(BadConfig, match="is in use") as caught:
        listen(taken.getsockname()[1])
    assert "port_in_use" == caught.value.code
    with listen(0) as opened:
        assert "127.0.0.1" == opened.getsockname()[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:9180"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "127.0.0.1@evil.example"},
        {"host": "[::1].evil.example"},
        {"host": "169.254.169.254"},
        {"host": ""},
        {"host": None},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"origin": "http://[::1].evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
        {"sec_fetch_site": "cross-site"},
        {"method": "POST"},
        {"method": "PUT"},
        {"method": "DELETE"},
        {"method": "OPTIONS"},
    ],
)
def test_whoever_is_not_of_this_machine_is_refused(headers: dict[str, str], tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    app = shown(checkpoint)
    for path in (*everything(checkpoint), "/live", "/metrics", "/static/page.js"):
        answer = get(app, path, **headers)
        assert answer.status in {403, 405, 421}
        assert "stand-in" not in answer.text
        assert answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "[::1]:9180", "LOCALHOST"])
def test_this_machine_is_let_in_by_all_its_names(host: str, tmp_path: Path) -> None:
    app = shown(ended(tmp_path))
    assert 200 == get(app, "/", host=host, origin=f"http://{host}").status


def test_a_link_of_another_site_opens_the_page(tmp_path: Path) -> None:
    app = shown(ended(tmp_path))
    assert 200 == get(app, "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status
    assert 200 == get(app, "/static/page.js", sec_fetch_site="same-origin", sec_fetch_mode="no-cors").status


@pytest.mark.parametrize(
    "trick",
    [
        "/jobs/..%2f..%2fetc%2fpasswd",
        "/jobs/%2e%2e/%2e%2e/etc/passwd",
        "/jobs/KEY/epochs/..%2f1",
        "/jobs/KEY/epochs/1%00",
        "/jobs/KEY%00",
        "/static/../application.py",
        "/static/..%2fapplication.py",
        "/static/%2e%2e/application.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/api/v1/jobs/..%2f..",
    ],
)
def test_tricks_with_paths_lead_nowhere(trick: str, tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    answer = get(shown(checkpoint), trick.replace("KEY", registry.key_of(checkpoint)))
    assert answer.status in {400, 404}
    assert "root:" not in answer.text
    assert "def " not in answer.text


def test_names_of_jobs_and_sinks_are_text_and_never_a_script(tmp_path: Path) -> None:
    name, sink = "<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>"
    checkpoint = make(tmp_path / "checkpoint", 30, job=name, sink=sink)
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    for path in ("/", *(f"/jobs/{key}{one}" for one in PAGES)):
        answer = get(app, path)
        check_page(answer)
        assert name not in answer.text
        assert "<img" not in answer.text
    moving = get(app, f"/jobs/{key}/live", most=2).text
    assert "<script" not in moving
    assert "<img" not in moving
    assert name == get(app, f"/api/v1/jobs/{key}").json["name"]
    assert "application/json" == get(app, f"/api/v1/jobs/{key}").headers["content-type"]


CANARY = ("ñandú", "\\u00f1and", "%C3%B1and")
"""A word of the golden jobs' input, as pages and JSON would write it."""


def sings(text: str) -> bool:
    return any(word.lower() in text.lower() for word in CANARY)


@pytest.mark.parametrize("name", ["decided", "files", "kafka"])
def test_no_row_is_on_any_page_although_the_checkpoint_still_holds_some(name: str) -> None:
    with unpacked(name) as where:
        checkpoint = where.root / "checkpoint"
        held = [
            path
            for path in checkpoint.rglob("*")
            if path.is_file() and sings(path.read_bytes().decode(errors="replace"))
        ]
        assert held, "the search sees it where it is: in staged rows"
        app = shown(checkpoint)
        newest = get(app, f"/api/v1/jobs/{registry.key_of(checkpoint)}/checkpoints?count=1").json["newest"]
        key = registry.key_of(checkpoint)
        details = (f"/jobs/{key}/epochs/{newest}", f"/api/v1/jobs/{key}/checkpoints/details/{newest}")
        for path in (*everything(checkpoint), *details):
            answer = get(app, path)
            assert not sings(answer.text), path
        assert not sings(get(app, f"/jobs/{key}/live", most=2).text)
