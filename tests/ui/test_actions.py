"""What can be asked for on the pages: by whom, from where, and what comes of it."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from addresses import check_page, codes, everything
from browser import Answer, get, post
from ended import ended, tree, wait_until
from golden import unpacked
from long_ledger import LINEAGE, make
from starlette.types import ASGIApp

from fencepost.admin.savepoint import verify
from fencepost.cli import stop
from fencepost.cli import ui as command
from fencepost.errors import BadConfig
from fencepost.observe import commands, journal, registry
from fencepost.observe.events import Event, Kind
from fencepost.observe.health import look
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.store.base import record_name
from fencepost.store.savepoints import find
from fencepost.ui import actions, api
from fencepost.ui.actions import Deed, Desk
from fencepost.ui.application import application
from fencepost.ui.shelf import Shelf

TOKEN = "canary-token-of-the-test"  # noqa: S105 - of the test
NAMES = ("stop", "cancel", "savepoint", "verify", "doctor")


class Visitor:
    """A browser with one job's pages, and the cookies and forms that it was given."""

    def __init__(self, *checkpoints: Path, deeds: list[Deed] | None = None) -> None:
        shelf = Shelf(checkpoints, registered=False)
        self.desk = Desk(deeds or command.deeds(), TOKEN)
        self.app: ASGIApp = application(shelf, codes, api.routes(shelf, codes), self.desk)
        self.key = registry.key_of(checkpoints[0])
        self.cookie = ""

    def page(self) -> Answer:
        return get(self.app, f"/jobs/{self.key}/actions", cookie=self.cookie)

    def seal(self, action: str) -> str:
        """Of the form that leads there."""
        (form,) = re.findall(rf'<form[^>]* action="{re.escape(action)}">(.*?)</form>', self.page().text, re.DOTALL)
        (found,) = re.findall(r'name="seal" value="(\w+)"', form)
        return str(found)

    def enter(self, token: str = TOKEN, name: str = "ann") -> Answer:
        form = {"token": token, "name": name, "job": self.key, "seal": self.seal("/token")}
        answer = post(self.app, "/token", form)
        if given := answer.headers.get("set-cookie"):
            self.cookie = given.partition(";")[0]
        return answer

    def ask(self, name: str, **headers: Any) -> Answer:
        path = f"/jobs/{self.key}/actions/{name}"
        return post(self.app, path, {"seal": self.seal(path), "sure": "yes"}, **{"cookie": self.cookie, **headers})

    def done(self, name: str) -> str:
        """Ask, wait until it is over, and read the page."""
        answer = self.ask(name)
        assert (303, f"/jobs/{self.key}/actions") == (answer.status, answer.headers["location"])
        wait_until(lambda: all(task.is_over for task in self.desk.tasks(self.key)))
        page = self.page()
        check_page(page)
        return page.text


def asked(checkpoint: Path) -> list[Event]:
    return [event for event in journal.read(checkpoint) if event.kind is Kind.ASKED]


@pytest.fixture
def visitor(tmp_path: Path) -> Visitor:
    return Visitor(ended(tmp_path))


def test_the_token_is_asked_for_once_and_held_where_no_script_sees_it(visitor: Visitor) -> None:
    before = visitor.page()
    check_page(before)
    assert 'name="token"' in before.text
    assert "/actions/stop" not in before.text
    answer = visitor.enter()
    assert (303, f"/jobs/{visitor.key}/actions") == (answer.status, answer.headers["location"])
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    after = visitor.page()
    check_page(after)
    assert 'name="token"' not in after.text
    assert all(f'action="/jobs/{visitor.key}/actions/{name}"' in after.text for name in NAMES)
    seals = re.findall(r'name="seal" value="(\w+)"', after.text)
    assert len(NAMES) == len(set(seals)), "each form has its own"


@pytest.mark.parametrize("token", ["", "canary-token-of-the-tes", "canary-token-of-the-test2", "ñandú"])
def test_a_wrong_token_opens_nothing(token: str, visitor: Visitor) -> None:
    answer = visitor.enter(token)
    assert 403 == answer.status
    check_page(answer)
    assert "token_wrong" in answer.text
    assert "set-cookie" not in answer.headers
    assert TOKEN not in answer.text


def test_without_actions_nothing_that_writes_is_there(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    shelf = Shelf([checkpoint], registered=False)
    app, key = application(shelf, codes, api.routes(shelf, codes)), registry.key_of(checkpoint)
    before = tree(tmp_path)
    for path in ("/token", *(f"/jobs/{key}/actions{one}" for one in ("", "/live", *(f"/{name}" for name in NAMES)))):
        assert 404 == get(app, path).status
        assert 405 == post(app, path, {"seal": "x", "sure": "yes", "token": TOKEN}).status
    assert "/actions" not in get(app, f"/jobs/{key}").text
    for path in (*everything(checkpoint), "/live", "/metrics", "/static/page.js", "/nothing", f"/jobs/{key}/nothing"):
        answer = post(app, path, {"seal": "x", "sure": "yes", "token": TOKEN})
        assert (405, "GET, HEAD") == (answer.status, answer.headers["allow"]), path
    assert before == tree(tmp_path)


def test_whoever_is_not_let_in_changes_nothing(visitor: Visitor, tmp_path: Path) -> None:
    visitor.enter()
    good, seals = visitor.cookie, {name: visitor.seal(f"/jobs/{visitor.key}/actions/{name}") for name in NAMES}
    before = tree(tmp_path)
    here = "127.0.0.1:9180"
    for name in NAMES:
        path, form = f"/jobs/{visitor.key}/actions/{name}", {"seal": seals[name], "sure": "yes"}
        other = NAMES[NAMES.index(name) - 1]
        stranger = good.partition("=")[0] + "=wrong"
        tries: list[tuple[int, dict[str, str], dict[str, Any]]] = [
            (403, form, {}),
            (403, form, {"cookie": stranger}),
            (403, form, {"cookie": f"fencepost={TOKEN}"}),
            (403, {"sure": "yes"}, {"cookie": good}),
            (403, {**form, "seal": "0" * 64}, {"cookie": good}),
            (403, {**form, "seal": seals[other]}, {"cookie": good}),
            (403, {**form, "seal": "ñ"}, {"cookie": good}),
            (403, form, {"cookie": good, "origin": None}),
            (403, form, {"cookie": good, "origin": "null"}),
            (403, form, {"cookie": good, "origin": "http://evil.example"}),
            (403, form, {"cookie": good, "origin": "http://127.0.0.1:9181"}),
            (403, form, {"cookie": good, "origin": f"https://{here}"}),
            (403, form, {"cookie": good, "origin": f"http://{here}.evil.example"}),
            (421, form, {"cookie": good, "host": "evil.example", "origin": f"http://{here}"}),
            (421, form, {"cookie": good, "host": "evil.example"}),
            (400, form, {"cookie": good, "content_type": "text/plain"}),
            (400, form, {"cookie": good, "content_type": "application/json"}),
            (400, {**form, "more": "x" * 5000}, {"cookie": good}),
        ]
        for status, given, headers in tries:
            answer = post(visitor.app, path, given, **headers)
            assert status == answer.status, (name, given, headers)
            assert TOKEN not in answer.text
        assert 404 == get(visitor.app, path, cookie=good).status or 405 == get(visitor.app, path, cookie=good).status
    for name in ("stop", "cancel"):
        path = f"/jobs/{visitor.key}/actions/{name}"
        answer = post(visitor.app, path, {"seal": seals[name]}, cookie=good)
        assert (400, True) == (answer.status, "not_confirmed" in answer.text)
    assert before == tree(tmp_path)
    assert [] == visitor.desk.tasks(visitor.key)
    assert 403 == get(visitor.app, f"/jobs/{visitor.key}/actions/live").status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/jobs/000000000000/actions/doctor", 404),
        ("/jobs/KEY/actions/rewind", 404),
        ("/jobs/KEY/actions/..%2fdoctor", 404),
        ("/jobs/KEY/actions/%2e%2e", 404),
        ("/jobs/..%2f..%2fetc/actions/doctor", 404),
        ("/jobs/%3Cscript%3E/actions/doctor", 404),
        ("/jobs/KEY%00/actions/doctor", 404),
        ("/jobs/KEY/epochs/1", 405),
        ("/jobs/KEY", 405),
        ("/api/v1/jobs/KEY", 405),
        ("/api/v1/jobs/KEY/actions/doctor", 405),
        ("/", 405),
        ("/metrics", 405),
    ],
)
def test_other_addresses_take_no_form(path: str, status: int, visitor: Visitor) -> None:
    visitor.enter()
    form = {"seal": visitor.seal(f"/jobs/{visitor.key}/actions/doctor"), "sure": "yes"}
    answer = post(visitor.app, path.replace("KEY", visitor.key), form, cookie=visitor.cookie)
    assert answer.status in {status, 405}
    assert [] == visitor.desk.tasks(visitor.key)


def test_a_form_of_one_job_does_not_do_for_another(tmp_path: Path) -> None:
    first, second = ended(tmp_path / "1"), ended(tmp_path / "2")
    visitor = Visitor(first, second)
    visitor.enter()
    form = {"seal": visitor.seal(f"/jobs/{visitor.key}/actions/doctor")}
    other = f"/jobs/{registry.key_of(second)}/actions/doctor"
    assert 403 == post(visitor.app, other, form, cookie=visitor.cookie).status
    assert 303 == post(visitor.app, f"/jobs/{visitor.key}/actions/doctor", form, cookie=visitor.cookie).status


def test_what_cannot_be_noted_in_the_journal_is_not_done(visitor: Visitor, tmp_path: Path) -> None:
    visitor.enter()
    seen = tmp_path / "checkpoint" / "fencepost" / "journal.jsonl"
    seen.rename(seen.with_name("aside"))
    seen.mkdir()
    answer = visitor.ask("doctor")
    assert 303 != answer.status
    assert "journal_unwritable" in answer.text
    assert [] == visitor.desk.tasks(visitor.key)
    seen.rmdir()
    visitor.done("doctor")
    assert 1 == len(asked(tmp_path / "checkpoint"))


def test_a_running_job_is_stopped_and_the_journal_says_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = ended(tmp_path, word=False)
    visitor = Visitor(checkpoint)
    visitor.enter(name="ann\n<b>")
    PULSE.add(str(checkpoint), lambda: this_driver("stand-in", 1, 1))
    wait_until(lambda: look(checkpoint).condition == "running")

    def drive() -> None:
        wait_until(lambda: commands.find(checkpoint, 1) == "stop")
        PULSE.remove(str(checkpoint))
        commands.take_back(checkpoint, 1)
        stopped = Event(kind=Kind.STOPPED, job="stand-in", at="2030-01-01T00:00:00+00:00", pid=1, writer=1)
        journal.Journal(checkpoint).note(stopped)

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    page = visitor.done("stop")
    driver.join(60)
    assert "Job stand-in is stopped: epoch 1 is complete; the checkpoint stays." in page
    assert "asked process" in page
    (event,) = asked(checkpoint)
    assert (event.what or "").startswith("stop, asked by ann<b> on the pages of ")
    assert "stopped" == look(checkpoint).condition
    starts = get(visitor.app, f"/jobs/{visitor.key}/starts").text
    assert "ann&lt;b&gt;" in starts
    for path in checkpoint.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


def test_a_driver_that_does_not_end_is_named_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PATIENCE", "1s")
    checkpoint = ended(tmp_path, word=False)
    visitor = Visitor(checkpoint)
    visitor.enter()
    PULSE.add(str(checkpoint), lambda: this_driver("stand-in", 1, 1))
    try:
        page = visitor.done("cancel")
    finally:
        PULSE.remove(str(checkpoint))
    assert "did not cancel within 1s" in page
    assert "something to read" in page
    assert "cancel" == commands.find(checkpoint, 1)


def test_what_is_asked_for_does_not_change_how_the_job_is(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path, "decide.after=kill@2")
    before = look(checkpoint)
    visitor = Visitor(checkpoint)
    visitor.enter()
    assert "There is nothing to stop" in visitor.done("stop")
    after = look(checkpoint)
    assert (before.condition, before.pid, before.failure) == (after.condition, after.pid, after.failure)


def test_a_savepoint_is_made_verified_and_doctor_agrees() -> None:
    with unpacked("stopped") as where:
        checkpoint = where.root / "checkpoint"
        visitor = Visitor(checkpoint)
        visitor.enter()
        page = visitor.done("savepoint")
        *_, made = find(checkpoint)[0]
        assert [] == verify(made)
        assert str(made.path) in page
        assert "Agrees" in visitor.done("verify")
        assert "Whole: job" in visitor.done("doctor")
        assert ["savepoint", "verify", "doctor"] == [
            (event.what or "").partition(",")[0] for event in asked(checkpoint)
        ]


def test_an_action_that_fails_shows_its_four_lines(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "checkpoint", 30)
    record = checkpoint / record_name(LINEAGE, 12)
    record.write_bytes(record.read_bytes()[:-5])
    visitor = Visitor(checkpoint)
    visitor.enter()
    page = visitor.done("savepoint")
    (task,) = visitor.desk.tasks(visitor.key)
    assert task.error is not None
    for part in (task.error.code, task.error.what, task.error.safe, task.error.next):
        assert part in page
    assert "Ledger record 12 is damaged" in visitor.done("doctor")


def test_an_error_of_ours_is_named_by_its_type_alone(tmp_path: Path) -> None:
    def broken(*given: object) -> bool:
        raise ZeroDivisionError("canary-secret")

    deed = Deed(name="doctor", title="Doctor", command="fencepost doctor", what="", do=broken)
    visitor = Visitor(ended(tmp_path), deeds=[deed])
    visitor.enter()
    page = visitor.done("doctor")
    assert "Doctor failed: ZeroDivisionError." in page
    assert "canary" not in page


def test_the_same_is_not_done_twice_at_a_time(tmp_path: Path) -> None:
    go = threading.Event()
    deed = Deed(name="doctor", title="Doctor", command="fencepost doctor", what="", do=lambda *_: go.wait(60))
    visitor = Visitor(ended(tmp_path), deeds=[deed])
    visitor.enter()
    before = get(visitor.app, f"/jobs/{visitor.key}/actions/live", most=2, cookie=visitor.cookie).text
    assert "Nothing yet" in before
    assert 303 == visitor.ask("doctor").status
    again = visitor.ask("doctor")
    assert (400, True) == (again.status, "action_runs" in again.text)
    assert "running" in visitor.page().text
    moving = get(visitor.app, f"/jobs/{visitor.key}/actions/live", most=2, cookie=visitor.cookie).text
    assert "live-tasks" in moving
    assert "running" in moving, "a page that was open before does not hand on what it was told"
    go.set()
    wait_until(lambda: visitor.desk.tasks(visitor.key)[0].is_over)
    assert 303 == visitor.ask("doctor").status


def test_a_job_called_script_is_text_on_the_page_of_actions_too(tmp_path: Path) -> None:
    visitor = Visitor(make(tmp_path / "checkpoint", 5, job="<script>alert(1)</script>"))
    assert "<script>alert" not in visitor.page().text
    visitor.enter(name='"><script>alert(2)</script>')
    assert "alert(2)" in visitor.page().text
    assert "<script>alert" not in visitor.done("doctor")


def test_a_checkpoint_that_goes_meanwhile_is_said(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    visitor = Visitor(checkpoint)
    visitor.enter()
    visitor.page()
    shutil.rmtree(checkpoint)
    page = visitor.done("doctor")
    assert "does not exist" in page or "no_ledger" in page


def test_the_other_pages_are_the_same_with_actions(visitor: Visitor, tmp_path: Path) -> None:
    for path in everything(tmp_path / "checkpoint"):
        answer = get(visitor.app, path)
        assert 200 == answer.status, path
        if not path.startswith("/api/"):
            check_page(answer)


def test_old_sessions_give_way_to_new_ones(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "SESSIONS", 2)
    first = visitor.desk.enter(TOKEN, "ann")
    others = [visitor.desk.enter(TOKEN, "") for _ in range(2)]
    assert [None, "somebody", "somebody"] == [visitor.desk.who(one) for one in (first, *others)]


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("short\n", 0o600, "fewer than 16"),
        ("", 0o600, "fewer than 16"),
        ("a-token-that-is-long-enough", 0o644, "other users"),
        (None, 0o600, "No such file"),
    ],
)
def test_a_token_file_that_does_not_do_is_refused(text: str | None, mode: int, why: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(BadConfig, match=why) as caught:
        actions.token_of(path)
    assert "token_file" == caught.value.code
    assert text is None or not text.strip() or text.strip() not in str(caught.value)


def test_a_token_file_that_does(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a-token-that-is-long-enough\nand more\n")
    path.chmod(0o600)
    assert "a-token-that-is-long-enough" == actions.token_of(path)
    assert actions.new_token() != actions.new_token()


def test_stop_is_the_command_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second implementation: what the command uses is what the page uses."""
    monkeypatch.setattr(stop, "look", lambda root: (_ for _ in ()).throw(BadConfig("planted", "Planted.", next="No.")))
    visitor = Visitor(ended(tmp_path))
    visitor.enter()
    assert "planted" in visitor.done("stop")
