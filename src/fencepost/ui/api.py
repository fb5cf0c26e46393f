"""The same as JSON, under /api/v1, described by /api/v1/openapi.json. Flink's words where Flink has them.

    /jobs                             /jobs/KEY                         /jobs/KEY/checkpoints
    /jobs/KEY/checkpoints/details/N   /jobs/KEY/exceptions              /jobs/KEY/sinks
    /jobs/KEY/dead-letters            /jobs/KEY/guarantee               /jobs/KEY/savepoints
    /errors, /errors/CODE

What Flink calls a checkpoint is an epoch here: `id`, `status` and `end_to_end_duration` mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fencepost.admin.letters import LetterPage
from fencepost.errors import UNCHANGED, BadConfig
from fencepost.observe import wording
from fencepost.observe.archive import Spread
from fencepost.observe.events import Event
from fencepost.observe.history import Epoch
from fencepost.protocol.format import VERSION
from fencepost.store import savepoints
from fencepost.store.retry import at_most
from fencepost.ui.application import (
    STANDINGS,
    Codes,
    dead_letters_of,
    looks_of,
    number_of,
    plain_error,
    wanted_of,
)
from fencepost.ui.shelf import PATIENCE_S, Glance, Shelf, ShownJob
from fencepost.ui.targets import Look

BASE: Final = "/api/v1"
STATUS: Final = {
    "complete": "COMPLETED",
    "decided": "IN_PROGRESS",
    "claimed": "IN_PROGRESS",
    "begun": "IN_PROGRESS",
    "failed": "FAILED",
}
"""Flink's word for how an epoch is; `standing` is ours, which tells more."""


def routes(shelf: Shelf, codes: Codes) -> list[Route]:
    """For the application."""
    api = Api(shelf, codes)
    return [
        Route(f"{BASE}/openapi.json", api.document),
        Route(f"{BASE}/jobs", api.jobs),
        Route(f"{BASE}/jobs/{{key}}", api.job),
        Route(f"{BASE}/jobs/{{key}}/checkpoints", api.epochs),
        Route(f"{BASE}/jobs/{{key}}/checkpoints/details/{{epoch}}", api.epoch),
        Route(f"{BASE}/jobs/{{key}}/exceptions", api.exceptions),
        Route(f"{BASE}/jobs/{{key}}/sinks", api.sinks),
        Route(f"{BASE}/jobs/{{key}}/dead-letters", api.dead_letters),
        Route(f"{BASE}/jobs/{{key}}/guarantee", api.guarantee),
        Route(f"{BASE}/jobs/{{key}}/savepoints", api.savepoints),
        Route(f"{BASE}/errors", api.errors),
        Route(f"{BASE}/errors/{{code}}", api.error),
    ]


class Api:
    """One method a route."""

    def __init__(self, shelf: Shelf, codes: Codes) -> None:
        self._shelf = shelf
        self._codes = codes

    async def document(self, request: Request) -> Response:
        """What this is."""
        return JSONResponse(openapi())

    async def jobs(self, request: Request) -> Response:
        """Every job, in short."""
        glances = await run_in_threadpool(self._shelf.glances)
        return JSONResponse({"jobs": [_plain_job(one) for one in glances]})

    async def job(self, request: Request) -> Response:
        """One of them."""
        job = self._job(request)
        return JSONResponse(_plain_job(await run_in_threadpool(job.known)))

    async def epochs(self, request: Request) -> Response:
        """A page of epochs, newest first, with percentiles over a range."""
        job = self._job(request)
        wanted = wanted_of(request.query_params)
        first, last = number_of(request.query_params, "from"), number_of(request.query_params, "to")

        def read() -> dict[str, Any]:
            page = job.archive.page(wanted)
            return {
                "history": [_plain_epoch(one) for one in page.epochs],
                "before": page.before,
                "oldest": page.oldest,
                "newest": page.newest,
                "summary": {name: _plain_spread(one) for name, one in job.archive.spreads(first, last).items()},
            }

        return await _answer(read)

    async def epoch(self, request: Request) -> Response:
        """One epoch."""
        job = self._job(request)
        number = number_of(request.path_params, "epoch")
        assert number is not None

        def read() -> dict[str, Any]:
            found = job.archive.epoch(number)
            return {
                **_plain_epoch(found.epoch),
                "handles": [{"id": one.id, "sink": one.sink, "rows": one.rows} for one in found.handles],
                "events": [event.plain for event in found.events],
            }

        return await _answer(read)

    async def exceptions(self, request: Request) -> Response:
        """Starts, ends and failures, newest first."""
        job = self._job(request)
        return await _answer(lambda: {"entries": [_plain_event(one) for one in job.archive.timeline()[:1000]]})

    async def sinks(self, request: Request) -> Response:
        """What each sink must hold, against what it confirmed; and how far each source is read."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            found = job.known().summary
            sinks = () if found is None else found.sinks
            sources = () if found is None else found.sources
            looks = looks_of(job)
            return {
                "sinks": [
                    {**asdict(one), "meets": one.meets, "mark": _plain_look(looks.get(one.name))} for one in sinks
                ],
                "sources": [{**asdict(one), "meets": one.meets} for one in sources],
            }

        return await _answer(read)

    async def dead_letters(self, request: Request) -> Response:
        """Where bad records were read, and why they are bad; never a record."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            found = dead_letters_of(job, request.query_params)
            page = found.page or LetterPage(readable=False)
            return {
                "asked": found.has_file,
                "sinks": found.sinks,
                "sink": found.sink,
                "letters": [letter._asdict() for letter in page.found],
                "more": page.more,
                "late": page.is_late,
                "sources": page.sources,
                "errors": page.errors,
                "counted": page.counted,
                "counted_all": page.is_all,
                "readable": page.readable,
                "how": page.how,
                "heard": page.heard,
                "why": page.why,
            }

        return await _answer(read)

    async def guarantee(self, request: Request) -> Response:
        """The chain from source to sink."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            state, branches = job.archive.plan()
            return {
                "guarantee": state.lineage.guarantee,
                "branches": [
                    {"sink": one.sink, "sources": [source.what for source in one.sources], "operators": one.operators}
                    for one in branches
                ],
                "sinks": {name: sink.shape for name, sink in state.sinks.items()},
            }

        return await _answer(read)

    async def savepoints(self, request: Request) -> Response:
        """Those beside the checkpoint, newest first."""
        job = self._job(request)

        def read() -> dict[str, Any]:
            found, refused = savepoints.find(job.archive.root)
            return {
                "savepoints": [
                    {
                        "name": one.name,
                        "epoch": one.epoch,
                        "created": one.created,
                        "files": len(one.files),
                        "bytes": one.size,
                        "path": str(one.path),
                    }
                    for one in reversed(found)
                ],
                "unreadable": [plain_error(error) for error in refused],
            }

        return await _answer(read)

    async def errors(self, request: Request) -> Response:
        """Every error code."""
        found = await run_in_threadpool(self._codes)
        return JSONResponse({"errors": [{"code": one.code, "theme": one.theme} for one in found]})

    async def error(self, request: Request) -> Response:
        """One of them."""
        for one in await run_in_threadpool(self._codes):
            if one.code == request.path_params["code"]:
                return JSONResponse(asdict(one))
        raise BadConfig("unknown_code", "There is no such error code.", safe=UNCHANGED, next=f"See {BASE}/errors.")

    def _job(self, request: Request) -> ShownJob:
        return self._shelf.job(request.path_params["key"])


async def _answer(read: Callable[[], dict[str, Any]]) -> Response:
    def patiently() -> dict[str, Any]:
        with at_most(PATIENCE_S):
            return read()

    return JSONResponse(await run_in_threadpool(patiently))


def _plain_job(glance: Glance) -> dict[str, Any]:
    head = {"id": glance.key, "name": glance.name, "checkpoint": glance.checkpoint}
    found = glance.summary
    told = {} if found is None else {**wording.plain(found.health), "rows_per_s": found.rows_per_s}
    told.pop("job", None)
    if found is not None:
        told["summary"] = None if found.spread is None else _plain_spread(found.spread)
        told["verified_records"] = None if found.records is None else [found.verified, found.records]
    problem = None if glance.problem is None else {**plain_error(glance.problem), "since": glance.since}
    return {**told, **head, "problem": problem}


def _plain_look(look: Look | None) -> dict[str, Any] | None:
    """None for a sink that was not asked."""
    if look is None:
        return None
    answer = look.answer
    found = () if answer is None else answer.findings
    unasked = look.why if look.since is None else ""
    return {
        "epoch": None if answer is None else answer.newest,
        "at": look.at if answer is not None else None,
        "why": unasked or ("" if answer is None else answer.why),
        "silent_since": look.since,
        "silent_because": "" if unasked else look.why,
        "findings": [{"code": one.code, "what": one.what, "next": one.next} for one in found],
    }


def _plain_epoch(one: Epoch) -> dict[str, Any]:
    took = None if one.seconds is None else round(one.seconds * 1000)
    return {
        "id": one.epoch,
        "status": STATUS[one.standing],
        "standing": one.standing,
        "end_to_end_duration": took,
        "decided": one.at if one.record is not None else None,
        "record": one.record,
        "writer": one.writer,
        "cause": one.cause,
        "rows": one.rows,
        "sinks": {name: {"rows": share.rows, "units": share.units} for name, share in one.sinks.items()},
        "ranges": {name: {"start": start, "end": end} for name, (start, end) in one.ranges.items()},
        "phases_s": {name: round(seconds, 6) for name, seconds in one.phases.items()},
        "attempts": one.attempts,
        "failure": None if one.failure is None else one.failure.plain,
    }


def _plain_event(event: Event) -> dict[str, Any]:
    return {"timestamp": _ms(event.at), "exceptionName": event.code, **event.plain}


def _plain_spread(spread: Spread) -> dict[str, float]:
    """In milliseconds, as Flink has them."""
    named = {"p50": spread.p50, "p90": spread.p90, "p99": spread.p99, "max": spread.longest}
    return {"count": spread.count, **{name: round(value * 1000, 3) for name, value in named.items()}}


def _ms(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000)


# --- the document


def openapi() -> dict[str, Any]:
    """All of it, as OpenAPI 3.1."""
    key = _parameter("key", "path", "string", "The id of a job, from /jobs.")
    number = _parameter("epoch", "path", "integer", "The number of an epoch.")
    page = [
        _parameter("before", "query", "integer", "Only epochs below this one: `before` of the last answer."),
        _parameter("count", "query", "integer", "How many, at most 500."),
        {**_parameter("standing", "query", "string", "Only these."), "schema": {"enum": list(STANDINGS)}},
        _parameter("sink", "query", "string", "Only those with rows for this sink."),
        _parameter("trouble", "query", "boolean", "Only those that failed or were tried again."),
        _parameter("from", "query", "integer", "Percentiles from this epoch on."),
        _parameter("to", "query", "integer", "Percentiles up to this epoch."),
    ]
    letters = [
        _parameter("sink", "query", "string", "Of this sink: one of `sinks` of the answer."),
        _parameter("source", "query", "string", "Only those of this source."),
        _parameter("position", "query", "string", "Only those whose position begins like this."),
        _parameter("error", "query", "string", "Only those with this error, as it is in an answer."),
        _parameter("skip", "query", "integer", "Leave out so many, at most 10,000."),
        _parameter("count", "query", "integer", "How many, at most 200."),
    ]
    code = _parameter("code", "path", "string", "An error code.")
    paths = {
        "/jobs": _get("Every job of this machine, and those that were named.", []),
        "/jobs/{key}": _get("How one job is: as `fencepost status --json`, and more.", [key]),
        "/jobs/{key}/checkpoints": _get("Its epochs, newest first, a page at a time.", [key, *page]),
        "/jobs/{key}/checkpoints/details/{epoch}": _get("All that is known about one epoch.", [key, number]),
        "/jobs/{key}/exceptions": _get("Starts, ends and failures, newest first.", [key]),
        "/jobs/{key}/sinks": _get(
            "What is read, decided, and in each sink. `mark` is what the sink itself says, if the job's FILE was "
            "named; its times are seconds since 1970. `why`: what it cannot tell, or why it was not asked.",
            [key],
        ),
        "/jobs/{key}/dead-letters": _get(
            "Where bad records were read and why they are bad, without the records; empty unless the job's FILE was "
            "named (`asked`). `late`: there are too many to sort in time, so they are only counted.",
            [key, *letters],
        ),
        "/jobs/{key}/guarantee": _get("The chain from source to sink.", [key]),
        "/jobs/{key}/savepoints": _get("Savepoints beside the checkpoint.", [key]),
        "/errors": _get("Every error code.", []),
        "/errors/{code}": _get("What one says, whether the data is safe, and what to do.", [code]),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fencepost",
            "version": VERSION,
            "description": "Jobs, epochs and sinks, read from checkpoints, and from the sinks of jobs whose FILE was "
            "named. Nothing can be changed. "
            "Times that end in _timestamp are milliseconds since 1970, durations are milliseconds, "
            "names that end in _s are seconds.",
        },
        "servers": [{"url": BASE}],
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {
                        "error": {
                            "type": "object",
                            "properties": {
                                name: {"type": "string"} for name in ("code", "what", "where", "data", "next")
                            },
                        }
                    },
                }
            }
        },
    }


def _parameter(name: str, where: str, kind: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "description": text, "schema": {"type": kind}}


def _get(text: str, parameters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    wrong = {"description": "What is wrong, in four parts.", "content": {"application/json": {"schema": ERROR}}}
    answers: dict[str, Any] = {
        "200": {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}
    }
    if any(one["in"] == "path" for one in parameters):
        answers |= {"404": wrong, "503": wrong}
    if any(one["in"] == "query" or one["name"] == "epoch" for one in parameters):
        answers |= {"400": wrong}
    return {"get": {"summary": text, "parameters": list(parameters), "responses": answers}}


ERROR: Final = {"$ref": "#/components/schemas/Error"}
