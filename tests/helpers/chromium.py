"""A real Chromium, told what to do through its debugging pipe: no driver, no port, no library.

    with Chromium(folder) as browser:
        page = browser.open("http://127.0.0.1:9180/", dark=True)

Notes what a page complains about, and every request that it makes.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def why_not() -> str | None:
    """Why there is none, or None."""
    return None if shutil.which("chromium") else "chromium is not installed (Debian: apt install chromium)"


class Chromium:
    """One browser with one tab."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        """Errors of the console, and exceptions of scripts."""
        self.requests: list[str] = []
        self._seen: list[str] = []

    def __enter__(self) -> Self:
        (theirs, ours), (mine, yours) = os.pipe(), os.pipe()
        command = ["chromium", *FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        # It reads from 3 and writes to 4.
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec "$@" 3<&{theirs} 4>&{yours}', "bash", *command],
            pass_fds=(theirs, yours),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(yours)
        self._to, self._from = ours, mine
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)  # it ends when nobody is there to tell it anything
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def open(self, address: str, *, dark: bool = False, width: int = 1200, height: int = 900) -> None:
        """Load a page, and wait until it is there."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._seen.clear()
        self.call("Page.navigate", url=address)
        self.wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        told = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def picture(self, path: Path) -> Path:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(told["data"]))
        return path

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One command of the DevTools protocol; its answer."""
        self._number += 1
        sent: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            sent["sessionId"] = self._session
        os.write(self._to, json.dumps(sent).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            told = self._next(until)
            if told.get("id") == self._number:
                assert "error" not in told, (method, told["error"])
                found: dict[str, Any] = told["result"]
                return found

    def wait(self, event: str) -> None:
        """Until it happened since the page was asked for."""
        until = time.monotonic() + PATIENCE_S
        while event not in self._seen:
            self._next(until)

    def _next(self, until: float) -> Mapping[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        data, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(data)
        self._note(told.get("method", ""), told.get("params", {}))
        return told

    def _note(self, method: str, given: Mapping[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(given["exceptionDetails"].get("text")))
        elif method == "Log.entryAdded" and given["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and given["type"] in {"error", "warning", "assert"}:
            self.complaints.append(str(given["args"]))
        if method:
            self._seen.append(method)
