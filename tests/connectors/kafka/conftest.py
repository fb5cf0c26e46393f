"""Drivers that are let go of when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transactions import SCHEMA

from fencepost.contract import Sink
from fencepost.testing import SinkDriver

Start = Callable[..., SinkDriver]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(sink, writer=2)`: a driver that has taken over."""
    made: list[SinkDriver] = []

    def begin(sink: Sink, *, schema: pa.Schema = SCHEMA, **owner: Any) -> SinkDriver:
        driver = SinkDriver(sink, tmp_path, **owner)
        made.append(driver)
        driver.start(schema)
        return driver

    yield begin
    for driver in made:
        with suppress(Exception):
            driver.session.rollback()
        driver.session.close()
