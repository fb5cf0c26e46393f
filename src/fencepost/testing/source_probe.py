"""Test a source of your own: are its records the same when a range of its offsets is read again?

def test_my_source_can_be_replayed(spark):
    check_replayable(spark.readStream.format("mine").load())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.errors import FencepostError
from fencepost.spark import replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_replayable(stream: DataFrame) -> None:
    """Read one micro-batch of every source of a stream twice, as `fencepost check --probe` does.

    Raises `GuaranteeTooHigh` (`not_replayable`) if the two differ, `AssertionError` if there was nothing to compare.
    Compares the number of rows and a sum of all columns, in one process: not their order, and not what a restarted
    process would read. Note: give it a source that has records, and that may lose them.
    """
    for found in replay.probe_all([stream]):
        if isinstance(found, FencepostError):
            raise found
        assert found.rows, found.says
