"""Every page in a real Chromium, light and dark: no error in the console, no request to another host, nothing serious
that axe-core finds. One job is stopped by its form, as a person would; one is killed, and its page says so.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from addresses import PAGES
from chromium import Chromium, why_not
from ended import ended, wait_until
from long_ledger import LINEAGE, make

from fencepost.observe import commands, health, journal, registry
from fencepost.observe.events import Event, Kind
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.store import Place, RemotePath, store_at
from fencepost.store import path as store_path
from fencepost.store.base import record_name

if TYPE_CHECKING:
    from fencepost_proof.rig.s3 import S3

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.long

AXE = "axe-core@4.10.3"
AXE_SUM = "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb"
RULES = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
BAD = "document.body.insertAdjacentHTML('beforeend', '<img src=\"/static/icon.svg\"><input>')"


def axe() -> str:
    """The script, fetched once and checked."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fencepost" / "npm"
    path = home / f"{AXE}.min.js"
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm")
        assert npm, "npm is not installed, which fetches axe-core"
        done = subprocess.run(
            [npm, "pack", "--silent", AXE], cwd=home, check=True, capture_output=True, text=True, timeout=300
        )
        with tarfile.open(home / done.stdout.split()[-1]) as packed:
            member = packed.extractfile("package/axe.min.js")
            assert member is not None
            path.write_bytes(member.read())
    data = path.read_bytes()
    assert AXE_SUM == hashlib.sha256(data).hexdigest()
    return data.decode()


class Opened:
    """A running `fencepost ui` with jobs of all kinds, and a browser."""

    def __init__(self, address: str, token: str, browser: Chromium, keys: dict[str, str]) -> None:
        self.address = address
        self.token = token
        self.browser = browser
        self.keys = keys


def fenced(folder: Path) -> Path:
    """The checkpoint of a driver that slept in an epoch while another one took over, and woke up."""
    folder.mkdir()
    job = [sys.executable, str(TESTS / "observe" / "scraped_job.py"), str(folder)]
    with subprocess.Popen([*job, "6", "engine.planned=stop@2"], stderr=subprocess.DEVNULL) as sleeper:
        try:
            os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
            subprocess.run([*job, "8"], check=True, timeout=300)
            sleeper.send_signal(signal.SIGCONT)
            assert 1 == sleeper.wait(300)
        finally:
            sleeper.kill()
    assert Kind.FENCED in [event.kind for event in journal.read(folder / "checkpoint")]
    return folder / "checkpoint"


def put(local: Path, s3: S3) -> RemotePath:
    """The same checkpoint on S3, where journals are not kept."""
    url = f"{s3.make_bucket(f'pages-{uuid.uuid4().hex[:8]}')}/orders"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        store_path._client.cache_clear()
        for path in local.rglob("*"):
            if path.is_file() and "journal" not in path.name:
                store_at(url).replace(path.relative_to(local).as_posix(), path.read_bytes())
    store_path._client.cache_clear()
    return RemotePath(url)


@contextmanager
def pages(home: Path, jobs: Sequence[Place], *options: str, **environment: str) -> Iterator[list[str]]:
    """A running `fencepost ui`; what it printed: its address, and its token if there is one."""
    command = [sys.executable, "-m", "fencepost", "ui", *map(str, jobs), "--port", "0", *options]
    given = {**os.environ, **environment, "FENCEPOST_HOME": str(home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=given) as process:
        try:
            assert process.stdout is not None
            yield [process.stdout.readline().strip() for _ in range(2 if "--actions" in options else 1)]
        finally:
            process.kill()


def with_file(folder: Path) -> Path:
    """The file of a job that has run, and whose dead letters these pages can read."""
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "1.txt").write_text("1\nx\n3\n")
    file = Path(shutil.copy(TESTS / "ui" / "letters_job.py", folder / "orders.py"))
    subprocess.run([sys.executable, str(file)], check=True, capture_output=True, timeout=300)
    return file


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, s3: S3) -> Iterator[Opened]:
    assert why_not() is None, why_not()
    folder = tmp_path_factory.mktemp("pages")
    jobs: dict[str, Place] = {
        "live": ended(folder / "live", word=False),
        "dead": ended(folder / "dead", "decide.after=kill@2"),
        "fenced": fenced(folder / "fenced"),
        "s3": put(ended(folder / "s3", "decide.after=kill@2"), s3),
        "damaged": make(folder / "damaged", 60, job="damaged"),
        "long": make(folder / "long", 100_000, job="<script>alert(1)</script>"),
    }
    record = jobs["damaged"] / record_name(LINEAGE, 12)
    record.write_bytes(record.read_bytes()[:-5])
    PULSE.add(str(jobs["live"]), lambda: this_driver("stand-in", 1, 1))
    file = with_file(folder / "named")
    with (
        pages(folder / "home", [*jobs.values(), file], "--actions", **s3.environment) as (address, token),
        Chromium(folder / "browser") as browser,
    ):
        try:
            keys = {name: registry.key_of(path) for name, path in jobs.items()}
            keys["named"] = registry.key_of(file.parent / "checkpoint")
            yield Opened(address, token.rpartition(" ")[2], browser, keys)
        finally:
            PULSE.remove(str(jobs["live"]))


def addresses(opened: Opened) -> list[str]:
    found = ["", "explain", "explain/fenced", "nothing"]
    for key in opened.keys.values():
        found += [f"jobs/{key}{page}" for page in (*PAGES, "/actions")]
    return found


def serious(browser: Chromium) -> list[Any]:
    return [
        (one["id"], one["impact"], [node["html"] for node in one["nodes"]])
        for one in browser.run(RULES)
        if one["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_is_quiet_alone_and_usable_by_everybody(dark: bool, opened: Opened) -> None:
    browser, script = opened.browser, axe()
    wrong = {}
    for path in addresses(opened):
        browser.complaints.clear()
        browser.requests.clear()
        browser.open(opened.address + path, dark=dark)
        browser.call("Runtime.evaluate", expression=script)
        # A page that says what is wrong has a status that says so too, which the console notes.
        said = [one for one in browser.complaints if not re.search(r"status of 4\d\d", one)]
        others = [one for one in browser.requests if not one.startswith(opened.address)]
        wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found = [*said, *others, *serious(browser), *([f"{wide} pixels too wide"] if wide > 0 else [])]
        if found:
            wrong[path] = found
    assert {} == wrong


def test_a_job_on_s3_and_one_that_was_fenced_say_so(opened: Opened) -> None:
    browser = opened.browser
    browser.open(f"{opened.address}jobs/{opened.keys['s3']}")
    page = browser.run("document.body.innerText")
    assert re.search("s3a://pages-[0-9a-f]{8}/orders", page)
    assert "Decided rows are on their way into a sink" in page
    browser.open(f"{opened.address}jobs/{opened.keys['fenced']}/starts")
    assert "The driver was fenced by a newer one" in browser.run("document.body.innerText")


WATCH = """
  const seen = window.seen = [];
  const note = () => {
    const said = document.querySelector('h1 .badge').textContent;
    if (!seen.length || seen.at(-1)[1] !== said) seen.push([Date.now() / 1000, said]);
  };
  new MutationObserver(note).observe(document.getElementById('live-head'), {childList: true, subtree: true});
  note();
"""
"""Notes what the page says a job is, and when it said so first."""
WITHIN_S = 2.0


class Watch(threading.Thread):
    """Notes what a job's files say, and when they said so first."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(daemon=True)
        self._checkpoint = checkpoint
        self._is_over = threading.Event()
        self.seen: list[tuple[float, bool]] = []
        """Since when it runs, and since when not."""

    def run(self) -> None:
        while not self._is_over.wait(0.05):
            runs = health.look(self._checkpoint).condition == "running"
            if not self.seen or self.seen[-1][1] != runs:
                self.seen.append((time.time(), runs))

    def end(self) -> None:
        self._is_over.set()
        self.join(60)


@pytest.mark.serial
def test_while_a_job_is_killed_and_comes_back_its_page_says_so_within_two_seconds(tmp_path: Path) -> None:
    assert why_not() is None, why_not()
    checkpoint, kills = tmp_path / "checkpoint", 3
    command = [sys.executable, "-m", "fencepost", "run", str(Path(__file__).with_name("watched_job.py")), str(tmp_path)]

    def runs_as(writers: int) -> bool:
        started = [event for event in journal.read(checkpoint) if event.kind is Kind.STARTED]
        return len(started) == writers and health.look(checkpoint).condition == "running"

    def kill(n: int) -> None:
        driver = health.look(checkpoint).pid
        assert driver is not None
        os.kill(driver, signal.SIGKILL)
        wait_until(lambda: runs_as(n + 1))

    with (
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as supervisor,
        pages(tmp_path / "home", [checkpoint]) as (address,),
        Chromium(tmp_path / "browser") as browser,
    ):
        watch = Watch(checkpoint)
        try:
            wait_until(lambda: journal.path_of(checkpoint).exists() and runs_as(1))
            browser.open(f"{address}jobs/{registry.key_of(checkpoint)}")
            wait_until(lambda: "live" == browser.run("document.getElementById('live').textContent"))
            browser.run(WATCH)
            watch.start()
            wait_until(lambda: watch.seen)
            for n in range(1, kills + 1):
                kill(n)
                wait_until(lambda n=n: 2 * n + 1 == len(watch.seen) == len(changes(browser.run("window.seen"))))
            shown = changes(browser.run("window.seen"))
            watch.end()
            browser.run("close()")  # a page that is told nothing more
            kill(kills + 1)
            assert shown == changes(browser.run("window.seen")), "the watch sees a page that does not follow"
        finally:
            if watch.is_alive():
                watch.end()
            supervisor.terminate()
    assert [n % 2 == 0 for n in range(2 * kills + 1)] == [runs for _, runs in watch.seen] == [runs for _, runs in shown]
    late = [on_page - in_files for (in_files, _), (on_page, _) in zip(watch.seen[1:], shown[1:], strict=True)]
    assert median(late) < WITHIN_S, late  # one that was late because the machine was busy is tolerated
    assert [] == browser.complaints
    assert [] == [one for one in browser.requests if not one.startswith(address)]


def changes(seen: list[tuple[float, str]]) -> list[tuple[float, bool]]:
    """When it began to run, and when it did no more."""
    found: list[tuple[float, bool]] = []
    for at, said in seen:
        if not found or found[-1][1] != (said == "running"):
            found.append((at, said == "running"))
    return found


def test_nothing_is_cut_off_on_a_phone(opened: Opened) -> None:
    browser = opened.browser
    wide = {}
    for path in addresses(opened):
        browser.open(opened.address + path, width=390)
        wide[path] = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert {} == {path: by for path, by in wide.items() if by > 0}


def test_the_search_sees_what_is_wrong(opened: Opened) -> None:
    browser = opened.browser
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(opened.address)
    browser.call("Runtime.evaluate", expression=axe())
    browser.run(f"{BAD}; new Image().src = 'http://192.0.2.1/x.png'; console.error('planted')")
    assert {"image-alt", "label"} <= {one[0] for one in serious(browser)}
    assert any("planted" in one for one in browser.complaints)
    assert any("192.0.2.1" in one for one in [*browser.requests, *browser.complaints])


def test_a_job_is_stopped_by_its_form(opened: Opened, tmp_path_factory: pytest.TempPathFactory) -> None:
    browser, key = opened.browser, opened.keys["live"]
    checkpoint = next(path for path in tmp_path_factory.getbasetemp().rglob("live/checkpoint"))
    page = f"{opened.address}jobs/{key}/actions"

    def fill(script: str) -> None:
        browser._seen.clear()
        browser.run(script)
        browser.wait("Page.loadEventFired")

    browser.open(page)
    fill("token.value = 'wrong'; document.querySelector('.entrance').requestSubmit()")
    assert "token_wrong" in browser.run("document.body.innerText")
    browser.open(page)
    fill(f"token.value = '{opened.token}'; document.getElementById('name').value = 'ann'; "
         "document.querySelector('.entrance').requestSubmit()")  # fmt: skip
    assert "You are ann" in browser.run("document.body.innerText")
    assert "" == browser.run("document.cookie"), "no script sees it"

    def drive() -> None:
        wait_until(lambda: commands.find(checkpoint, 1) == "stop")
        PULSE.remove(str(checkpoint))
        commands.take_back(checkpoint, 1)
        at = "2030-01-01T00:00:00+00:00"
        journal.Journal(checkpoint).note(Event(kind=Kind.STOPPED, job="stand-in", at=at, pid=1, writer=1))

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    fill("document.querySelector('form[action$=\"/stop\"] input[name=sure]').click(); "
         "document.querySelector('form[action$=\"/stop\"]').requestSubmit()")  # fmt: skip
    wait_until(lambda: "Job stand-in is stopped" in browser.run("document.body.innerText"))
    driver.join(60)
    browser.call("Runtime.evaluate", expression=axe())
    assert [] == serious(browser)
    (asked,) = [event for event in journal.read(checkpoint) if event.kind is Kind.ASKED]
    assert (asked.what or "").startswith("stop, asked by ann on the pages of ")
