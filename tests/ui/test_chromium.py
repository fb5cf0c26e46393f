"""Every page in a real Chromium, light and dark: no error in the console, no request to another host, nothing serious
that axe-core finds. One job is stopped by its form, as a person would.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from addresses import PAGES
from chromium import Chromium, why_not
from ended import ended, wait_until
from long_ledger import LINEAGE, make

from fencepost.observe import commands, journal, registry
from fencepost.observe.events import Event, Kind
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.store.base import record_name

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


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    assert why_not() is None, why_not()
    folder = tmp_path_factory.mktemp("pages")
    jobs = {
        "live": ended(folder / "live", word=False),
        "dead": ended(folder / "dead", "decide.after=kill@2"),
        "damaged": make(folder / "damaged", 60, job="damaged"),
        "long": make(folder / "long", 100_000, job="<script>alert(1)</script>"),
    }
    record = jobs["damaged"] / record_name(LINEAGE, 12)
    record.write_bytes(record.read_bytes()[:-5])
    PULSE.add(str(jobs["live"]), lambda: this_driver("stand-in", 1, 1))
    command = [sys.executable, "-m", "fencepost", "ui", *map(str, jobs.values()), "--port", "0", "--actions"]
    environment = {**os.environ, "FENCEPOST_HOME": str(folder / "home")}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process,
        Chromium(folder / "browser") as browser,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            token = process.stdout.readline().strip().rpartition(" ")[2]
            yield Opened(address, token, browser, {name: registry.key_of(path) for name, path in jobs.items()})
        finally:
            PULSE.remove(str(jobs["live"]))
            process.kill()


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
