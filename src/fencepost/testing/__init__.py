"""Test a sink of your own: the suite that every sink of fencepost passes. See `SinkContract`."""

from fencepost.testing.contract import SinkContract
from fencepost.testing.driver import Driver, rows_of

__all__ = ["Driver", "SinkContract", "rows_of"]
