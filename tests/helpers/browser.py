"""A browser for tests: one request to an application, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def get(
    app: ASGIApp, path: str, *, method: str = "GET", host: str | None = "127.0.0.1:9180", most: int = 0, **headers: str
) -> Answer:
    """Ask for a path; `most`: after so many pieces of the body the browser is gone, and a stream has to notice."""
    return asyncio.run(_get(app, path, method, host, most, headers))


def post(
    app: ASGIApp, path: str, form: Mapping[str, str], *, host: str = "127.0.0.1:9180", **headers: str | None
) -> Answer:
    """Send a form as a browser does; a header of None is left out."""
    sent = {"origin": f"http://{host}", "content_type": "application/x-www-form-urlencoded", **headers}
    given = {name: value for name, value in sent.items() if value is not None}
    return asyncio.run(_get(app, path, "POST", host, 0, given, urlencode(form).encode()))


async def _get(  # noqa: PLR0917 - one request
    app: ASGIApp, path: str, method: str, host: str | None, most: int, headers: Mapping[str, str], body: bytes = b""
) -> Answer:
    raw, _, query = path.partition("?")
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": sent if host is None else [(b"host", host.encode()), *sent],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 9180),
    }
    start: dict[str, Any] = {}
    pieces: list[bytes] = []
    asked = False
    gone = asyncio.Event()

    async def receive() -> Message:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        elif piece := message.get("body", b""):
            pieces.append(piece)
            if most and len(pieces) >= most:
                gone.set()

    try:
        await asyncio.wait_for(app(scope, receive, send), 60)
    except Exception:
        if start.get("status") != 500:  # it is raised for the server's log once the page is sent
            raise
    told = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], told, b"".join(pieces))
