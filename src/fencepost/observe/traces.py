"""Traces of jobs for OpenTelemetry, made from their journals: one of every epoch, one of every recovery.

    epoch       from its rows to their commit; below it the pre-commit, vote and commit by sink, the decision
    recovery    from the takeover to the first epoch; below it what was committed and undone

A thread of its own reads the journal once a second, so an epoch does nothing for its trace. A collector that is slow or
gone does not hold up the job: what it does not take is dropped. Never a row's value and never a secret.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context

from fencepost.observe.events import Event, Kind, TraceIds
from fencepost.observe.history import PHASES
from fencepost.observe.journal import Follower
from fencepost.observe.registry import key_of
from fencepost.protocol.format import VERSION
from fencepost.store import Place

EVERY_S: Final = 1.0
LAST_S: Final = 3.0
"""How long the end of a process waits for the collector."""
SERVICE: Final = "OTEL_SERVICE_NAME"
STEPS: Final = {**PHASES, Kind.ABORTED: "abort"}
ENDS: Final = {Kind.FAILED, Kind.FENCED, Kind.DIED, Kind.GAVE_UP, Kind.RESTARTED, Kind.STOPPED}
"""Events after which no epoch of that driver goes on."""
Jobs = Callable[[], Iterable[tuple[str, Place]]]


def trace(jobs: Jobs, endpoint: str | None = None) -> Traces:
    """Send the traces of these jobs from now on, until the process ends.

    To the endpoint (`http://host:4318`), or to where OpenTelemetry's own variables say; by default to this machine.
    """
    to = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
    service = {} if SERVICE in os.environ else {"service.name": "fencepost"}
    provider = TracerProvider(
        resource=Resource.create({**service, "service.version": VERSION}), id_generator=_Ids(), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=to)))
    made = Traces(jobs, provider)
    made.begin()
    atexit.register(made.end)
    return made


class _Ids(IdGenerator):
    """A trace has the id that the log lines of its epoch have."""

    def __init__(self) -> None:
        self.trace = 0
        self._random = random.SystemRandom()

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self._random.randrange(1, 1 << 64)


class Traces:
    """Follows journals, and makes the spans of what is over."""

    def __init__(self, jobs: Jobs, provider: TracerProvider) -> None:
        self._jobs = jobs
        self._provider = provider
        self._followed: dict[str, _Followed] = {}
        self._began = time.time()
        self._over = threading.Event()
        self._one_looks = threading.Lock()

    def begin(self) -> None:
        """Look again and again, in a thread."""
        threading.Thread(target=self._run, name="fencepost-traces", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            with suppress(Exception):  # a trace less, and the job goes on
                self.look()

    def look(self) -> None:
        """Make spans of what is new."""
        with self._one_looks:
            for name, where in self._jobs():
                key = key_of(where)
                if key not in self._followed:
                    tracer = self._provider.get_tracer("fencepost", VERSION)
                    ids = self._provider.id_generator
                    assert isinstance(ids, _Ids)
                    self._followed[key] = _Followed(name, key, Follower(where), tracer, ids)
                self._followed[key].look(self._began)

    def end(self) -> None:
        """Send what is left; a collector that does not answer is not waited for."""
        self._over.set()

        def last() -> None:
            with suppress(Exception):
                self.look()
                self._provider.shutdown()

        ending = threading.Thread(target=last, daemon=True)
        ending.start()
        ending.join(LAST_S)


@dataclass(slots=True)
class _Going:
    """An epoch or a recovery that goes on."""

    id: str
    name: str
    events: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class _Followed:
    """One job."""

    name: str
    key: str
    follower: Follower
    tracer: Tracer
    ids: _Ids
    names: dict[int | None, TraceIds] = field(default_factory=dict)
    """By process: several drivers write one journal, each with its own events in order."""
    open: dict[str, _Going] = field(default_factory=dict)
    """By trace."""
    children: dict[int | None, set[int]] = field(default_factory=dict)
    """By supervisor: the drivers that it started."""

    def look(self, began: float) -> None:
        for event in self.follower.new():
            if _time(event) >= began - EVERY_S:
                self._take(event)

    def _take(self, event: Event) -> None:
        if event.kind is Kind.SPAWNED and event.process is not None:
            self.children.setdefault(event.pid, set()).add(event.process)
        ids = self.names.setdefault(event.pid, TraceIds(self.key))
        trace = ids.of(event)
        if trace is not None and not event.again:
            part = self.open.setdefault(trace, _Going(trace, "recovery" if ids.recovers else "epoch"))
            part.events.append(event)
            if event.kind in {Kind.COMPLETE, Kind.RECOVERED}:
                self._close(self.open.pop(trace), None)
        if event.kind in ENDS:
            self._drop(event)
        elif event.kind is Kind.STARTED:  # whoever was there before does not go on
            self._drop(event, but=trace)

    def _drop(self, event: Event, but: str | None = None) -> None:
        """What is open does not go on: its driver failed or died, or somebody has replaced it."""
        gone = {event.process or event.pid, *self.children.get(event.pid, ())}
        for trace, part in list(self.open.items()):
            if trace != but and (event.kind is Kind.STARTED or part.events[0].pid in gone):
                self._close(self.open.pop(trace), event)

    def _close(self, part: _Going, failure: Event | None) -> None:
        first, last = part.events[0], failure or part.events[-1]
        self.ids.trace = int(part.id, 16)
        begin = min(_begin(event) for event in part.events)
        facts = _facts(first, job=self.name, checkpoint=self.key)
        root = self.tracer.start_span(part.name, kind=SpanKind.INTERNAL, start_time=_ns(begin), attributes=facts)
        inside = set_span_in_context(root)
        for event in part.events:
            if (step := STEPS.get(event.kind)) is not None:
                child = self.tracer.start_span(step, inside, start_time=_ns(_begin(event)), attributes=_facts(event))
                child.end(_ns(_time(event)))
            elif event.kind is Kind.TRIED_AGAIN:
                root.add_event("tried again", {"fencepost.code": event.code or ""}, _ns(_time(event)))
        rows = next((event.rows for event in reversed(part.events) if event.rows is not None), None)
        if rows is not None:
            root.set_attribute("fencepost.rows", rows)
        if failure is not None:
            root.set_attribute("fencepost.code", failure.code or failure.kind.value)
            root.set_status(Status(StatusCode.ERROR, failure.what or failure.kind.value))
        root.end(_ns(max(_time(last), begin)))


def _facts(event: Event, **more: str) -> Mapping[str, str | int]:
    told = {name: getattr(event, name) for name in ("epoch", "writer", "sink", "rows", "units")}
    return {f"fencepost.{name}": value for name, value in {**told, **more}.items() if value is not None}


def _begin(event: Event) -> float:
    """A step is noted when it is over."""
    took = event.seconds if event.kind in STEPS or event.kind is Kind.RECOVERED else None
    return _time(event) - (took or 0.0)


def _time(event: Event) -> float:
    return datetime.fromisoformat(event.at).timestamp()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
