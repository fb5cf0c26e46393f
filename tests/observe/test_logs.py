"""Logs for machines: a line of JSON a record, with the keys that the journal has."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from fencepost.observe import journal
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Observer


def test_an_event_has_the_same_keys_in_the_log_as_in_the_journal(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    observer = Observer("orders")
    observer.call(told.append, Kind.DECIDED)
    with caplog.at_level(logging.DEBUG, "fencepost.events"):
        observer.note(Kind.DECIDED, epoch=7, seconds=0.1234567)
    said = json.loads(journal.JsonFormatter().format(caplog.records[0]))
    assert told[0].plain.items() <= said.items()
    assert ("DEBUG", "fencepost.events", 7, 0.123457) == (said["level"], said["logger"], said["epoch"], said["seconds"])
    assert {"message", "thread"} == set(said) - set(told[0].plain) - {"level", "logger"}


def test_a_text_of_several_lines_and_a_trace_stay_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "a\nb %s", ("c",), sys.exc_info())
    line = journal.JsonFormatter().format(record)
    assert 1 == len(line.splitlines())
    assert "a\nb c" == json.loads(line)["message"]
    assert "ValueError: two\nlines" in json.loads(line)["trace"]


def test_a_driver_logs_as_its_supervisor_was_told_to() -> None:
    code = (
        "import logging\nfrom fencepost.observe import journal\nfrom fencepost.observe.journal import Observer\n"
        "from fencepost.observe.events import Kind\njournal.follow_environment()\n"
        "Observer('orders').note(Kind.OPENED, epoch=1)\nlogging.getLogger('mine').info('hello')\n"
        "logging.getLogger('py4j').info('a call')"
    )

    def said(style: str) -> list[str]:
        env = {**os.environ, journal.STYLE: style}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        return done.stderr.splitlines()

    assert ["opened", None] == [json.loads(line).get("kind") for line in said("json")]
    assert [] == said("text")
