"""What one start finds out of its checkpoint, each thing once."""

from __future__ import annotations

from typing import Any

import pytest
from golden import unpacked

from fencepost.config import Checkpoint, RunConfig
from fencepost.observe.journal import Observer
from fencepost.runtime.checks import Launch
from fencepost.spark import backend
from fencepost.store.spark_log import SparkLog


def test_a_store_that_is_silent_for_a_moment_does_not_hide_what_the_checkpoint_was_begun_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else state on the heap would run without its lock."""
    silent = [OSError(5, "for a moment")]
    identity = SparkLog.identity

    def first_silent(self: SparkLog) -> Any:
        if silent:
            raise silent.pop()
        return identity(self)

    monkeypatch.setattr(SparkLog, "identity", first_silent)
    with unpacked("heap") as place:
        launch = Launch(RunConfig(job="words", checkpoint=Checkpoint(place.checkpoint)), None, {}, Observer("words"))
        assert launch.begun is None
        assert backend.on_heap(launch.formats)
