"""The pages of `fencepost ui` for tests: all their addresses, and what every one of them has to be."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from browser import Answer, get
from starlette.types import ASGIApp

from fencepost.observe import registry
from fencepost.ui import api
from fencepost.ui.application import Explained, application
from fencepost.ui.shelf import Shelf

PAGES = ("", "/epochs", "/epochs/1", "/sinks", "/dead-letters", "/starts", "/state", "/guarantee")
CALLS = (
    "",
    "/checkpoints",
    "/checkpoints/details/1",
    "/exceptions",
    "/sinks",
    "/dead-letters",
    "/guarantee",
    "/savepoints",
)
WHOLE = ("/", "/explain", "/explain/fenced", "/api/v1/jobs", "/api/v1/errors", "/api/v1/openapi.json")


def codes() -> Sequence[Explained]:
    return [Explained("fenced", "Drivers", "", [{"says": "says <b>", "data": "safe", "next": "nothing"}])]


def shown(*checkpoints: Path) -> ASGIApp:
    shelf = Shelf(checkpoints, registered=False)
    return application(shelf, codes, api.routes(shelf, codes))


def everything(checkpoint: Path) -> list[str]:
    key = registry.key_of(checkpoint)
    return [*WHOLE, *(f"/jobs/{key}{one}" for one in PAGES), *(f"/api/v1/jobs/{key}{one}" for one in CALLS)]


def read_all(checkpoint: Path) -> dict[str, str]:
    """All that the pages, the API, what moves, and /metrics say of a checkpoint: each address with its text."""
    app, key = shown(checkpoint), registry.key_of(checkpoint)
    found = {path: get(app, path) for path in (*everything(checkpoint), "/metrics")}
    found |= {path: get(app, path, most=2) for path in ("/live", f"/jobs/{key}/live")}
    wrong = {path: one.status for path, one in found.items() if one.status != 200}
    assert all(path.endswith("/1") for path in wrong), f"only epoch 1 may be missing: {wrong}"
    return {path: f"{dict(one.headers)}{one.text}" for path, one in found.items()}


class Tags(HTMLParser):
    """What a page loads, links to, and is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "input", "br", "img", "wbr"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(answer: Answer) -> None:
    """It is whole, loads nothing from elsewhere, and has no script, style or handler of its own."""
    assert answer.headers["content-type"].startswith("text/html")
    tags = Tags(answer.text)
    assert [] == tags.open
    names = [name for name, _ in tags.seen]
    assert 1 == names.count("h1")
    assert 1 == names.count("main")
    assert "style" not in names
    assert ("html", {"lang": "en"}) in tags.seen
    for name, given in tags.seen:
        assert not [one for one in given if one.startswith("on") or one == "style"]
        if name == "script":
            assert "/static/page.js" == given["src"]
        for link in (given.get("src"), given.get("href")):
            assert link is None or link[:1] in {"/", "#", "?"}
            assert link is None or not link.startswith("//")
        if name == "input" and given.get("type") != "checkbox":
            assert given.get("name")
