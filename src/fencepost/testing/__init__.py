"""Test your own sink with the suite that every sink of fencepost passes (`SinkContract`), and your own source."""

from fencepost.testing.sink_driver import SinkDriver, rows_of
from fencepost.testing.source_probe import check_replayable
from fencepost.testing.suite import SinkContract

__all__ = ["SinkContract", "SinkDriver", "check_replayable", "rows_of"]
