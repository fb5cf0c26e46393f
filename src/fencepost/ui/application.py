"""The pages: rendered here, whole, from what a checkpoint holds; a small script only replaces what moves.

    /                      jobs                  /explain, /explain/CODE
    /jobs/KEY              one job               /jobs/KEY/epochs, …/epochs/N, …/sinks, …/dead-letters, …/starts,
                           …/state, …/guarantee
    /live, /jobs/KEY/live  what moves, as server-sent events
    /api/v1/…              the same as JSON      /metrics

Only GET, only with a Host of this machine, never a script or a style from within a page. Nothing here writes; what
does is in actions.py, and is not there unless somebody wants it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fencepost.admin import state as states
from fencepost.admin.letters import OTHER, LetterPage, of_error
from fencepost.contract import LONGEST_ERROR, LettersWanted
from fencepost.errors import UNCHANGED, BadConfig, FencepostError, Retryable, require
from fencepost.observe import wording
from fencepost.observe.archive import Wanted
from fencepost.observe.events import Event, Kind
from fencepost.observe.history import PHASES
from fencepost.observe.picture import HEIGHT, STEP, WIDTH, curve_of, outcome_of, strip_of
from fencepost.protocol.format import VERSION
from fencepost.store import savepoints
from fencepost.store.retry import at_most
from fencepost.ui.actions import ActionPages, Desk
from fencepost.ui.shelf import PATIENCE_S, Glance, Shelf, ShownJob
from fencepost.ui.targets import Look

if TYPE_CHECKING:
    from fencepost.observe.metrics import Metrics

HOST: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""A page of another site that has its own name point to this machine sends that name, and is refused."""
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer a browser would hide the Origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
WRITING: Final = re.compile(r"/token|/jobs/[^/]+/actions/[^/]+")
"""Paths that take a POST, if there are actions at all."""
EVERY_S: Final = 1.0
"""How often what moves is looked at."""
QUIET_S: Final = 15.0
"""After this long without news, a stream says that it is there."""
STREAMS: Final = 100
"""Pages that are told what moves, at the same time; a further one is asked to come back."""
DEEPEST: Final = 10_000
"""Dead letters that a page may skip: the target has to sort them each time."""
LONGEST: Final = 500
"""Characters of a source or a position in a query."""
STANDINGS: Final = ("complete", "decided", "claimed", "begun", "failed")


@dataclass(frozen=True, slots=True)
class Explained:
    """One error code, as `fencepost explain` has it."""

    code: str
    theme: str
    more: str
    told: Sequence[Mapping[str, str]]


Codes = Callable[[], Sequence[Explained]]
Handler = Callable[[Request], Awaitable[Response]]


def application(shelf: Shelf, codes: Codes, more: Sequence[Route] = (), desk: Desk | None = None) -> Guard:
    """The whole, as ASGI; without a desk nothing can be asked for."""
    pages = Pages(shelf, codes, has_actions=desk is not None)
    routes = [
        Route("/", pages.jobs),
        Route("/live", pages.jobs_live),
        Route("/explain", pages.codes),
        Route("/explain/{code}", pages.code),
        Route("/jobs/{key}", pages.job),
        Route("/jobs/{key}/live", pages.job_live),
        Route("/jobs/{key}/epochs", pages.epochs),
        Route("/jobs/{key}/epochs/{epoch}", pages.epoch),
        Route("/jobs/{key}/sinks", pages.sinks),
        Route("/jobs/{key}/dead-letters", pages.dead_letters),
        Route("/jobs/{key}/starts", pages.starts),
        Route("/jobs/{key}/state", pages.state),
        Route("/jobs/{key}/guarantee", pages.guarantee),
        Route("/metrics", pages.metrics),
        *([] if desk is None else pages.with_actions(desk).routes()),
        *more,
        Mount("/static", StaticFiles(packages=[("fencepost.ui", "static")])),
    ]
    handlers: dict[Any, Any] = {FencepostError: pages.refused, HTTPException: pages.missing, Exception: pages.broken}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), pages, has_actions=desk is not None)


class Guard:
    """Before everything else: who asks, from where, and for what."""

    def __init__(self, app: ASGIApp, pages: Pages, *, has_actions: bool) -> None:
        self._app = app
        self._pages = pages
        self._has_actions = has_actions

    def end_with(self, is_ending: Callable[[], bool]) -> None:
        """Open streams end by themselves when the server does."""
        self._pages.is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                kept = [one for one in message["headers"] if one[0].decode().lower() not in HEADERS]
                message = {**message, "headers": [*kept, *told]}
            await send(message)

        if (refusal := _refusal(Request(scope), has_actions=self._has_actions)) is not None:
            await refusal(scope, receive, sealed)
        else:
            try:
                await self._app(scope, receive, sealed)
            except asyncio.CancelledError:  # of a stream that took too long to end; the server would print a trace
                if not self._pages.is_ending():
                    raise


def _refusal(request: Request, *, has_actions: bool) -> Response | None:
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
        return _plain(421, "This page is for this machine alone: open it as http://127.0.0.1 or http://localhost.")
    origin = request.headers.get("origin")
    is_asked_by_theirs = origin is not None and not HOST.fullmatch(origin.removeprefix("http://"))
    # With an image or a script that another site's page loads, a browser sends no Origin.
    told = request.headers.get
    is_loaded_by_theirs = told("sec-fetch-site") == "cross-site" and told("sec-fetch-mode") != "navigate"
    if is_asked_by_theirs or is_loaded_by_theirs:
        return _plain(403, "A page of another site asked for this. Open it in a tab of its own.")
    if has_actions and request.method == "POST" and WRITING.fullmatch(request.url.path):
        # Other ports of this machine are the same site to a browser, but not the same origin.
        if origin is None or origin.lower() != f"http://{hosts[0].lower()}":
            return _plain(403, "Only a form of this page can ask for this.")
        return None
    if request.method not in {"GET", "HEAD"}:
        return _plain(405, "Nothing can be changed here: only GET is answered.", {"allow": "GET, HEAD"})
    return None


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text + "\n", status, headers, "text/plain")


def status_of(error: FencepostError) -> int:
    """What HTTP calls it."""
    if error.code in {"unknown_job", "unknown_epoch", "unknown_code", "no_ledger", "no_page"}:
        return 404
    if error.code in {"token_needed", "token_wrong", "form_refused"}:
        return 403
    if isinstance(error, Retryable) or error.code in {"store_denied", "store_missing"}:
        return 503
    return 400 if isinstance(error, BadConfig) else 409


class Pages:
    """Every page, and what moves in it."""

    def __init__(self, shelf: Shelf, codes: Codes, *, has_actions: bool = False) -> None:
        self._shelf = shelf
        self._codes = codes
        self._templates = templates()
        self._templates.globals.update(has_actions=has_actions, asks_sinks=shelf.asks_sinks)
        self._streams = 0
        self._metrics: Metrics | None = None
        self.is_ending: Callable[[], bool] = lambda: False
        self._moving: dict[str, tuple[float, dict[str, str]]] = {}

    # --- all jobs

    async def jobs(self, request: Request) -> Response:
        """Every job in one line."""
        found = await run_in_threadpool(self._glances)
        return self._page("jobs.html", jobs=found, live="/live")

    async def jobs_live(self, request: Request) -> Response:
        """What moves there."""
        return self._stream(request, "jobs", lambda: {"live-jobs": self._part("jobs", jobs=self._glances())})

    def _glances(self) -> list[Glance]:
        found = self._shelf.glances()
        return [one for one in found if one.problem is None or one.problem.code != "no_ledger"]

    # --- one job

    async def job(self, request: Request) -> Response:
        """Its page."""
        job = self._job(request)
        glance = await run_in_threadpool(job.known)
        return self._page("job.html", job=glance, live=f"/jobs/{job.key}/live", tab="job", **_drawn(glance))

    async def job_live(self, request: Request) -> Response:
        """What moves there."""
        job = self._job(request)

        def parts() -> dict[str, str]:
            glance = job.glance()
            if glance.summary is None:  # nothing was ever read of it
                return {"live-head": self._part("head", job=glance)}
            drawn = _drawn(glance)
            names = ("head", "now", "bars", "meeting", "figures")
            return {f"live-{name}": self._part(name, job=glance, **drawn) for name in names}

        return self._stream(request, job.key, parts)

    async def epochs(self, request: Request) -> Response:
        """The whole history, a page at a time."""
        job = self._job(request)
        asked = request.query_params
        wanted = wanted_of(asked)
        first, last = number_of(asked, "from"), number_of(asked, "to")

        def read() -> dict[str, Any]:
            with at_most(PATIENCE_S):
                glance = job.known()
                return {
                    "job": glance,
                    "page": job.archive.page(wanted),
                    "spreads": job.archive.spreads(first, last),
                    "sinks": [] if glance.summary is None else [sink.name for sink in glance.summary.sinks],
                }

        found = await run_in_threadpool(read)
        kept = {name: value for name, value in asked.items() if name != "before" and value}
        before = found["page"].before
        older = None if before is None else "?" + urlencode({**kept, "before": before})
        newest = "?" + urlencode(kept) if wanted.before is not None else None
        return self._page(
            "epochs.html", tab="epochs", wanted=wanted, older=older, newest=newest, first=first, last=last, **found
        )

    async def epoch(self, request: Request) -> Response:
        """One epoch."""
        job = self._job(request)
        number = _number(request.path_params["epoch"], "epoch")

        def read() -> dict[str, Any]:
            with at_most(PATIENCE_S):
                return {"job": job.known(), "found": job.archive.epoch(number)}

        found = await run_in_threadpool(read)
        return self._page("epoch.html", tab="epochs", **found)

    async def sinks(self, request: Request) -> Response:
        """Mark against ledger."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            with at_most(PATIENCE_S):
                return {"job": job.known(), "looks": looks_of(job), "has_file": job.targets is not None}

        return self._page("sinks.html", tab="sinks", **await run_in_threadpool(read))

    async def dead_letters(self, request: Request) -> Response:
        """Where bad records were read and why they are bad, a page at a time; never a record."""
        job = self._job(request)
        asked = request.query_params

        def read() -> dict[str, Any]:
            with at_most(PATIENCE_S):
                return {"job": job.known(), "letters": dead_letters_of(job, asked)}

        found = await run_in_threadpool(read)
        letters = found["letters"]
        kept = {name: value for name, value in asked.items() if name != "skip" and value}
        more = letters.page is not None and letters.page.more
        older = "?" + urlencode({**kept, "skip": letters.skip + letters.count}) if more else None
        first = "?" + urlencode(kept) if letters.skip else None
        return self._page("letters.html", tab="letters", older=older, first=first, OTHER=OTHER, **found)

    async def starts(self, request: Request) -> Response:
        """Starts, ends and failures."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            with at_most(PATIENCE_S):
                glance = job.known()
                timeline = job.archive.timeline()
                drivers = () if timeline or glance.problem else job.archive.drivers()
                return {"job": glance, "timeline": timeline[:500], "more": len(timeline) > 500, "drivers": drivers}

        return self._page("starts.html", tab="starts", **await run_in_threadpool(read))

    async def state(self, request: Request) -> Response:
        """Operators with state, and savepoints."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            with at_most(PATIENCE_S):
                glance = job.known()
                ledger, _ = job.archive.plan()
                copies, refused = savepoints.find(job.archive.root)
                inside = states.look(job.archive.root, ledger)
                return {"job": glance, "inside": inside, "copies": list(reversed(copies)), "refused": refused}

        return self._page("state.html", tab="state", **await run_in_threadpool(read))

    async def guarantee(self, request: Request) -> Response:
        """The chain from source to sink."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            with at_most(PATIENCE_S):
                glance = job.known()
                ledger, branches = job.archive.plan()
                return {"job": glance, "ledger": ledger, "branches": branches}

        return self._page("guarantee.html", tab="guarantee", **await run_in_threadpool(read))

    def with_actions(self, desk: Desk) -> ActionPages:
        """The pages that can do more than read."""
        return ActionPages(self._shelf, desk, self._page, self._part, self._stream, self._forget)

    # --- codes

    async def codes(self, request: Request) -> Response:
        """Every error code."""
        return self._page("codes.html", codes=await run_in_threadpool(self._codes))

    async def code(self, request: Request) -> Response:
        """One of them."""
        wanted = request.path_params["code"]
        for entry in await run_in_threadpool(self._codes):
            if entry.code == wanted:
                return self._page("code.html", entry=entry)
        raise BadConfig(
            "unknown_code",
            "There is no such error code.",
            safe=UNCHANGED,
            next="Choose one from the list: /explain.",
        )

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        require("metrics_missing", "prometheus_client", extra="metrics", purpose="for /metrics")
        from fencepost.observe.metrics import Metrics  # noqa: PLC0415 - of an extra

        if self._metrics is None:
            self._metrics = Metrics(lambda: [(job.name, job.archive.root) for job in self._shelf.jobs()])
        text = await run_in_threadpool(self._metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    # --- what is wrong

    async def refused(self, request: Request, error: Exception) -> Response:
        """Four lines."""
        assert isinstance(error, FencepostError)
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": plain_error(error)}, status_of(error))
        key = request.path_params.get("key")
        back = key if error.code != "unknown_job" and request.url.path != f"/jobs/{key}" else None
        return self._page("error.html", status=status_of(error), error=error, back=back)

    async def missing(self, request: Request, error: Exception) -> Response:
        """An address that does not exist."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        told = BadConfig("no_page", "There is no such page.", safe=UNCHANGED, next="Begin at the list of jobs.")
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": plain_error(told)}, status)
        return self._page("error.html", status=status, error=told)

    async def broken(self, request: Request, error: Exception) -> Response:
        """An error of ours: its type alone, because a message might quote what it read."""
        told = FencepostError(
            "page_failed",
            f"This page failed: {type(error).__name__}.",
            safe=UNCHANGED,
            next="Load it again. If it fails again, `fencepost status` and `fencepost doctor` read the same files.",
        )
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": plain_error(told)}, 500)
        return self._page("error.html", status=500, error=told)

    # --- how

    def _job(self, request: Request) -> ShownJob:
        return self._shelf.job(request.path_params["key"])

    def _page(self, template: str, *, status: int = 200, **facts: Any) -> Response:
        facts = {"live": None, "tab": None, "job": None, "back": None, **facts}
        return HTMLResponse(self._templates.get_template(template).render(**facts), status)

    def _part(self, name: str, **facts: Any) -> str:
        part = getattr(self._templates.get_template("parts.html").module, name)
        return str(part(**facts)).strip()

    def _stream(self, request: Request, name: str, parts: Callable[[], dict[str, str]]) -> Response:
        if self._streams >= STREAMS:
            return _plain(503, "Too many pages are open.", {"retry-after": "30"})
        return StreamingResponse(self._told(name, parts), media_type="text/event-stream")

    async def _told(self, name: str, parts: Callable[[], dict[str, str]]) -> AsyncIterator[str]:
        """What changed since the last time, until the browser is gone."""
        said: dict[str, str] = {}
        quiet = time.monotonic()
        self._streams += 1
        try:
            yield "retry: 2000\n\n"
            while not self.is_ending():
                try:
                    found = await self._moved(name, parts)
                except FencepostError:
                    found = said  # the page says what is wrong when it is loaded again
                news = {part: text for part, text in found.items() if said.get(part) != text}
                said = found
                if news:
                    quiet = time.monotonic()
                    told = ", ".join(f'"{part}": {text}' for part, text in news.items())
                    yield f"data: {{{told}}}\n\n"
                elif time.monotonic() - quiet > QUIET_S:
                    quiet = time.monotonic()
                    yield ": still here\n\n"
                await asyncio.sleep(EVERY_S)
        finally:
            self._streams -= 1

    def _forget(self, name: str) -> None:
        self._moving.pop(name, None)

    async def _moved(self, name: str, parts: Callable[[], dict[str, str]]) -> dict[str, str]:
        """Rendered once for all pages that show the same, each part as JSON."""
        at, found = self._moving.get(name, (0.0, {}))
        if not found or time.monotonic() - at > EVERY_S * 0.9:
            self._moving[name] = (time.monotonic(), found)  # the others take the last one meanwhile
            found = await run_in_threadpool(lambda: {part: json.dumps(text) for part, text in parts().items()})
            self._moving[name] = (time.monotonic(), found)
        return found


def _drawn(glance: Glance) -> dict[str, Any]:
    recent = () if glance.summary is None else glance.summary.recent
    return {
        "strip": strip_of(recent),
        "took": curve_of([one.seconds for one in recent]),
        "rows": curve_of([None if one.rows is None else float(one.rows) for one in recent]),
    }


def plain_error(error: FencepostError) -> dict[str, str]:
    """Its four parts."""
    return {
        "code": error.code,
        "what": error.what,
        "where": str(error.where),
        "data": error.safe,
        "next": error.next,
    }


def wanted_of(asked: Mapping[str, str]) -> Wanted:
    """What a page of epochs is asked for; `BadConfig` for what is not valid."""
    standing = asked.get("standing") or None
    if standing is not None and standing not in STANDINGS:
        raise _bad("standing", f"one of {', '.join(STANDINGS)}")
    return Wanted(
        before=number_of(asked, "before"),
        count=min(number_of(asked, "count") or 50, 500),
        standing=standing,
        sink=asked.get("sink") or None,
        trouble=asked.get("trouble") in {"1", "on", "true"},
    )


def looks_of(job: ShownJob) -> dict[str, Look]:
    """What each sink says of itself, if it can be asked: without decisions there is nothing to compare it with."""
    found = job.known().summary
    if job.targets is None or found is None or found.health.guarantee != "exactly_once" or found.health.damage:
        return {}
    return job.targets.looks(job.archive.root, job.archive.ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersAnswer:
    """A page of dead letters, and what was asked for."""

    has_file: bool
    sinks: tuple[str, ...] = ()
    """Those that get dead letters."""
    sink: str | None = None
    """The one that was read."""
    source: str = ""
    position: str = ""
    error: str = ""
    skip: int = 0
    count: int = 0
    page: LetterPage | None = None


def dead_letters_of(job: ShownJob, asked: Mapping[str, str]) -> LettersAnswer:
    """Read what is asked for; `BadConfig` for what is not valid."""
    lengths = {"source": LONGEST, "position": LONGEST, "error": LONGEST_ERROR}
    given = {name: _text(asked, name, longest) for name, longest in lengths.items()}
    skip, count = number_of(asked, "skip") or 0, min(number_of(asked, "count") or 50, 200)
    wanted = LettersWanted(source=given["source"] or None, position=given["position"], skip=skip, most=count)
    wanted = of_error(wanted, given["error"])
    if skip > DEEPEST:
        raise _bad("skip", f"at most {DEEPEST}, and narrow down the source, the position or the error")
    if job.targets is None or not job.targets.dead:
        return LettersAnswer(has_file=job.targets is not None)
    sinks = job.targets.dead
    sink = asked.get("sink") or sinks[0]
    if sink not in sinks:
        raise _bad("sink", "a sink that gets dead letters")
    page = job.targets.letters(sink, job.known().name, wanted)
    return LettersAnswer(has_file=True, sinks=sinks, sink=sink, skip=skip, count=count, page=page, **given)


def _text(asked: Mapping[str, str], name: str, longest: int) -> str:
    text = asked.get(name) or ""
    if len(text) > longest or "\0" in text:  # which PostgreSQL refuses; a column's name may have any other character
        raise _bad(name, f"at most {longest:,} characters, none of them a zero byte")
    return text


def number_of(asked: Mapping[str, str], name: str) -> int | None:
    """A number of a query; None if it is not there."""
    return None if not asked.get(name) else _number(asked[name], name)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise _bad(name, "a whole number that is not negative")
    return int(text)


def _bad(name: str, wanted: str) -> BadConfig:
    return BadConfig("bad_query", f"{name} is not valid.", safe=UNCHANGED, next=f"Give {wanted}.")


# --- templates


def templates() -> Environment:
    """Every value is escaped; one that is not given is an error, not an empty text."""
    made = Environment(
        loader=PackageLoader("fencepost.ui"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        span=wording.span,
        ago=wording.ago,
        path=_path,
        quoted=shlex.quote,
        clock=_clock,
        number=_grouped,
        took=_took,
        place=position,
        size=_size,
    )
    made.globals.update(
        WORDS=wording.WORDS,
        data_of=wording.data_of,
        next_of=wording.next_of,
        after_failure=wording.after_failure,
        since=wording.since,
        epoch_of=wording.epoch_of,
        outcome_of=outcome_of,
        tone_of=tone_of,
        event_text=event_text,
        event_tone=event_tone,
        PHASES=("tasks", *PHASES.values()),
        STANDINGS=STANDINGS,
        HEIGHT=HEIGHT,
        STEP=STEP,
        WIDTH=WIDTH,
        VERSION=VERSION,
    )
    return made


TONES: Final = {
    "running": "good",
    "starting": "busy",
    "waiting": "warn",
    "silent": "bad",
    "stopped": "calm",
    "failed": "bad",
    "dead": "bad",
    "unknown": "warn",
}


def tone_of(glance: Glance) -> str:
    """The colour of a job."""
    if glance.problem is not None or glance.summary is None:
        return "warn"
    health = glance.summary.health
    return "bad" if health.damage is not None else TONES[health.condition]


EVENT_TONES: Final = {
    Kind.STARTED: "good",
    Kind.RECOVERED: "good",
    Kind.STOPPED: "calm",
    Kind.WARM: "good",
    Kind.FAILED: "bad",
    Kind.FENCED: "bad",
    Kind.DIED: "bad",
    Kind.GAVE_UP: "bad",
    Kind.TRIED_AGAIN: "warn",
    Kind.RESTARTED: "warn",
    Kind.ABORTED: "warn",
    Kind.CALLBACK_FAILED: "warn",
}
EVENT_WORDS: Final = {
    Kind.SPAWNED: "A process was started",
    Kind.STARTED: "A driver took over",
    Kind.RECOVERED: "Recovery finished",
    Kind.TRIED_AGAIN: "An epoch failed before its decision and is tried again",
    Kind.FAILED: "The query failed",
    Kind.RESTARTED: "It is started again",
    Kind.WARM: "The standby is ready",
    Kind.TOOK_OVER: "The standby takes over",
    Kind.FENCED: "The driver was fenced by a newer one",
    Kind.STOPPED: "It stopped cleanly",
    Kind.GAVE_UP: "It gave up",
    Kind.DIED: "The driver's process died",
    Kind.CALLBACK_FAILED: "A callback of the user failed",
    Kind.ABORTED: "Rows that no decision names were undone",
    Kind.ASKED: "Somebody asked for an action",
}


def event_text(event: Event) -> str:
    """What happened, in a short sentence."""
    parts = [EVENT_WORDS.get(event.kind, event.kind.value.replace("_", " "))]
    if event.kind is Kind.SPAWNED and event.what:
        parts = [f"A {event.what} process was started"]
    if event.epoch is not None:
        parts.append(f"epoch {event.epoch}")
    if event.sink is not None:
        parts.append(f"sink {event.sink}")
    if event.attempt is not None:
        parts.append(f"attempt {event.attempt}")
    if event.seconds is not None:
        word = "after a wait of" if event.kind in {Kind.RESTARTED, Kind.DIED} else "took"
        parts.append(f"{word} {wording.span(event.seconds)}")
    return ", ".join(parts)


def event_tone(event: Event) -> str:
    """Its colour."""
    return EVENT_TONES.get(event.kind, "busy")


def position(text: str | None) -> str:
    """Where a source is, in few words: what Spark writes, without its punctuation."""
    if text is None:
        return "not known"
    if text == "-":
        return "the beginning"
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    if isinstance(parsed, dict) and len(parsed) == 1 and isinstance(value := next(iter(parsed.values())), int):
        return str(value)
    return text.strip("{}").replace('"', "").replace(":{", " ").replace("},", "; ").replace("}", "").replace(",", ", ")


def _path(text: str) -> Markup:
    """A path that is broken into lines after a slash, if it has to be."""
    return Markup("/<wbr>").join(escape(part) for part in text.split("/"))


def _clock(at: float | str | None, digits: int = 0) -> str:
    if at is None:
        return "at an unknown time"
    moment = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{text[: 20 + digits] if digits else text[:19]} UTC"


def _grouped(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _took(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else wording.span(seconds)


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
