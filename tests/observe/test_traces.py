"""Traces: what a collector gets over the wire, of epochs, recoveries and kills; and one that does not answer."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ended import ended, wait_until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from fencepost.errors import now
from fencepost.observe import journal
from fencepost.observe.events import Event, Kind, TraceIds
from fencepost.observe.journal import Observer, read
from fencepost.observe.traces import LAST_S, Traces, trace
from fencepost.store import place

JOB = Path(__file__).with_name("scraped_job.py")
OK = 200


class Collector:
    """A receiver of OTLP over HTTP on this machine, which decodes what it gets."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.status = OK

    @property
    def traces(self) -> dict[str, dict[str, list[Span]]]:
        """By id, then the spans by name."""
        found: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
        for span in self.spans:
            found[span.trace_id.hex()][span.name].append(span)
        return found

    def take(self, body: bytes) -> None:
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {one.value.string_value for one in part.resource.attributes if one.key == "service.name"}
            self.spans += [span for scope in part.scope_spans for span in scope.spans]


@contextmanager
def receiving() -> Iterator[tuple[str, Collector]]:
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert ("/v1/traces", "application/x-protobuf") == (self.path, self.headers["Content-Type"])
            if made.status == OK:
                made.take(body)
            self.send_response(made.status)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", made
        finally:
            server.shutdown()


def traced(checkpoint: Path, endpoint: str) -> Traces:
    return trace(lambda: [("orders", place(checkpoint))], endpoint)


def facts(span: Span) -> dict[str, Any]:
    return {
        one.key.removeprefix("fencepost."): one.value.string_value or one.value.int_value for one in span.attributes
    }


def test_an_epoch_is_a_trace_with_its_phases_by_sink_and_a_recovery_is_one(tmp_path: Path) -> None:
    with receiving() as (endpoint, collector):
        traces = traced(tmp_path / "checkpoint", endpoint)
        checkpoint = ended(tmp_path)
        traces.end()
    assert {"fencepost"} == collector.services
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert ["epoch", "epoch", "recovery"] == sorted(span.name for span in roots)
    for root in roots:
        mine = collector.traces[root.trace_id.hex()]
        children = [span for spans in mine.values() for span in spans if span.parent_span_id]
        assert {root.span_id} == {span.parent_span_id for span in children} or root.name == "recovery"
        if root.name == "epoch":
            assert {"epoch", "pre-commit", "vote", "decide", "commit"} == set(mine)
            assert ["db"] == [facts(span)["sink"] for span in mine["commit"]]
            assert (2, "orders") == (facts(root)["rows"], facts(root)["job"])
        for span in children:
            assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
    complete = [event for event in read(checkpoint) if event.kind is Kind.COMPLETE and not event.again]
    assert len(complete) == sum(span.name == "epoch" for span in roots)


def test_an_epoch_whose_driver_was_killed_is_an_error_and_recovery_commits_it(tmp_path: Path) -> None:
    with receiving() as (endpoint, collector):
        traces = traced(tmp_path / "checkpoint", endpoint)
        ended(tmp_path, "decide.after=kill@2")
        ended(tmp_path)
        traces.end()
    roots = [span for span in collector.spans if not span.parent_span_id]
    killed = [span for span in roots if span.status.code == span.status.STATUS_CODE_ERROR]
    assert [1] == [facts(span)["epoch"] for span in killed]
    assert {"epoch", "pre-commit", "vote", "decide"} == set(collector.traces[killed[0].trace_id.hex()]), "and no commit"
    recoveries = [collector.traces[span.trace_id.hex()] for span in roots if span.name == "recovery"]
    assert [0, 1] == sorted(len(one["commit"]) for one in recoveries)


def test_a_supervisor_sends_the_traces_of_its_drivers_and_their_log_lines_name_them(tmp_path: Path) -> None:
    words = ["run", "--otel", "--log", "json", str(JOB), str(tmp_path), "8", "decide.after=kill@2"]
    with receiving() as (endpoint, collector):
        done = subprocess.run(
            [sys.executable, "-m", "fencepost", *words],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SERVICE_NAME": "mine"},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    assert {"mine"} == collector.services
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert [0, 1, 2, 3] == sorted(facts(span)["epoch"] for span in roots if span.name == "epoch")
    assert 2 == sum(span.name == "recovery" for span in roots)
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    decided = {line["trace_id"]: line["epoch"] for line in said if line.get("kind") == "decided"}
    epochs = {span.trace_id.hex(): facts(span)["epoch"] for span in roots if span.name == "epoch"}
    assert epochs == decided


def test_the_log_lines_of_an_epoch_have_the_id_of_its_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(journal.TRACED, "1")
    (tmp_path / "fencepost").mkdir()
    observer = Observer("orders")
    with receiving() as (endpoint, collector), caplog.at_level(logging.DEBUG, "fencepost.events"):
        traces = traced(tmp_path, endpoint)
        observer.write_to(str(tmp_path), 3)
        for kind in (Kind.STARTED, Kind.RECOVERED):
            observer.note(kind)
        for kind in (Kind.OPENED, Kind.DECIDED, Kind.COMPLETE):
            observer.note(kind, epoch=7, seconds=0.01)
        observer.note(Kind.STOPPED)
        traces.end()
    said = [json.loads(journal.JsonFormatter().format(record)).get("trace_id") for record in caplog.records]
    ids = {span.name: span.trace_id.hex() for span in collector.spans if not span.parent_span_id}
    assert [ids["recovery"]] * 2 + [ids["epoch"]] * 3 + [None] == said


def test_two_drivers_have_two_traces_of_one_epoch() -> None:
    def of(writer: int, checkpoint: str = "a") -> str | None:
        opened = Event(kind=Kind.OPENED, job="j", at="2026-01-01T00:00:00+00:00", pid=1, writer=writer, epoch=7)
        return TraceIds(checkpoint).of(opened)

    assert 3 == len({of(1), of(2), of(1, "b")})
    assert of(1) == of(1)


@pytest.mark.parametrize("how", ["gone", "failing", "silent"])
def test_a_broken_collector_neither_stops_a_job_nor_holds_up_its_end(how: str, tmp_path: Path) -> None:
    with receiving() as (failing, collector), socket.create_server(("127.0.0.1", 0)) as silent:
        collector.status = 503
        unanswered = f"http://127.0.0.1:{silent.getsockname()[1]}"
        endpoint = {"gone": "http://127.0.0.1:1", "failing": failing, "silent": unanswered}[how]
        traces = traced(tmp_path / "checkpoint", endpoint)
        checkpoint = ended(tmp_path)
        wait_until(lambda: any(event.kind is Kind.STOPPED for event in read(checkpoint)))
        began = time.monotonic()
        traces.end()
        assert time.monotonic() - began < LAST_S + 30, "a busy machine has its own pace"
    assert [] == collector.spans
    assert 2 == sum(event.kind is Kind.COMPLETE and not event.again for event in read(checkpoint))


def test_the_end_does_not_wait_for_a_collector_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = traced(tmp_path / "checkpoint", "http://127.0.0.1:1")
    answered = threading.Event()
    monkeypatch.setattr(traces._provider, "shutdown", answered.wait)
    ending = threading.Thread(target=traces.end, daemon=True)
    ending.start()
    ending.join(60)
    waits = ending.is_alive()
    answered.set()
    assert not waits


def told(checkpoint: Path, pid: int, *events: tuple[Kind, dict[str, Any]]) -> None:
    """Written by a driver, or by a supervisor."""
    for kind, known in events:
        assert journal.Journal(checkpoint).note(Event(kind=kind, job="orders", at=now(), pid=pid, **known))


def test_a_callback_that_fails_after_its_epoch_opens_no_second_trace(tmp_path: Path) -> None:
    (tmp_path / "fencepost").mkdir()
    with receiving() as (endpoint, collector):
        traces = traced(tmp_path, endpoint)
        epoch: dict[str, Any] = {"writer": 1, "epoch": 4}
        told(tmp_path, 7, (Kind.OPENED, epoch), (Kind.COMPLETE, epoch), (Kind.CALLBACK_FAILED, epoch))
        told(tmp_path, 7, (Kind.STOPPED, {"writer": 1}))
        traces.end()
    assert [("epoch", 0)] == [(span.name, span.status.code) for span in collector.spans]


def test_a_supervisor_that_gives_up_ends_the_traces_of_its_own_driver_only(tmp_path: Path) -> None:
    """It was replaced: the driver that took over goes on."""
    (tmp_path / "fencepost").mkdir()
    with receiving() as (endpoint, collector):
        traces = traced(tmp_path, endpoint)
        old: dict[str, Any] = {"writer": 1, "epoch": 4}
        new: dict[str, Any] = {"writer": 2, "epoch": 4}
        told(tmp_path, 50, (Kind.SPAWNED, {"process": 7}))
        told(tmp_path, 8, (Kind.OPENED, new))
        told(tmp_path, 7, (Kind.OPENED, old))
        told(tmp_path, 50, (Kind.DIED, {"code": "fenced"}), (Kind.GAVE_UP, {"code": "fenced"}))
        told(tmp_path, 8, (Kind.COMPLETE, new))
        traces.end()
    assert {(1, "fenced"), (2, None)} == {
        (facts(span)["writer"], facts(span).get("code")) for span in collector.spans if span.name == "epoch"
    }


def test_what_happened_before_is_not_sent(tmp_path: Path) -> None:
    checkpoint = ended(tmp_path)
    time.sleep(2.1)
    with receiving() as (endpoint, collector):
        traced(checkpoint, endpoint).end()
    assert [] == collector.spans
