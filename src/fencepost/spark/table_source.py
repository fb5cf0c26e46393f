"""Our own sources, in Spark's terms: Python data sources, which Spark has for everybody.

    driver             `registration.py` registers a source and hands over its settings
    a process beside   `TableInput`: offsets, and what lies between two of them; one as long as the query runs
    tasks              `TablePart.read`: rows

Spark prints the options of a source in its plans, which it logs and shows. So credentials are not among them: they are
part of the class that is registered, and of the partitions, of which Spark sees nothing but bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from fencepost.contract import place_of
from fencepost.errors import LATER, EpochFailed, FencepostError

limits: Any
try:
    limits = import_module("pyspark.sql.streaming.datasource")
except ImportError:  # before Spark 4.2
    limits = None

Limited: Any = object if limits is None else limits.SupportsTriggerAvailableNow
T = TypeVar("T")
Offset = Mapping[str, Any]


class TablePart(Protocol):
    """What one task reads; pickled."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Its rows, in the schema that it was made with."""


class TableInput(Protocol):
    """A source, in the process beside the driver."""

    def first(self) -> Offset:
        """The offset before everything; the same whenever it is asked for, because Spark does not store it."""

    def latest(self, start: Offset | None, most: int | None = None) -> Offset:
        """How far to read now: `start` itself if there is nothing new. None: wherever the last range ended."""

    def freeze(self) -> None:
        """Nothing that is added from now on will be read."""

    def parts(self, start: Offset, end: Offset, schema: pa.Schema) -> Sequence[TablePart]:
        """What lies between two offsets: the same rows, whenever it is asked for."""


Make = Callable[[], TableInput]
"""Opens a source; pickled, and compared with what was registered before."""


class TablePartition(InputPartition):
    """One task's part."""

    def __init__(self, part: TablePart) -> None:
        super().__init__(None)
        self.part = part


class TableSource(DataSource):
    """All of our sources; `registration.py` makes a class of each."""

    made: ClassVar[Mapping[str, Make]] = {}
    """By location: all that the session reads."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        make, most = self.made[self.options["location"]], self.options.get("maxfilespertrigger")
        return OldReader(make, schema) if limits is None else Reader(make, schema, None if most is None else int(most))


class _Reader(DataSourceStreamReader):
    """Made in the process beside the driver, and again for the tasks, who use `read` alone."""

    def __init__(self, make: Make, schema: StructType) -> None:
        self._make = make
        self._schema = schema
        self._opened: TableInput | None = None

    @property
    def _input(self) -> TableInput:
        """Opened at first use: what is pickled for tasks has nothing open."""
        if self._opened is None:
            self._opened = self._make()
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return _safely(lambda: dict(self._input.first()))

    def partitions(self, start: Offset, end: Offset) -> list[TablePartition]:
        wanted = arrow_schema(self._schema)
        return _safely(lambda: [TablePartition(part) for part in self._input.parts(start, end, wanted)])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        return partition.part.read()


class OldReader(_Reader):
    """For Spark 4.0 and 4.1, which do not say where an epoch begins. At a restart they plan an empty range at the end
    of the last one, from which we know it.
    """

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        return _safely(lambda: dict(self._input.latest(None)))


class Reader(_Reader, Limited):  # type: ignore[misc]
    """Since Spark 4.2: an epoch can be limited to some files."""

    def __init__(self, make: Make, schema: StructType, most: int | None) -> None:
        super().__init__(make, schema)
        self._most = most

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        return limits.ReadAllAvailable() if self._most is None else limits.ReadMaxFiles(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        _safely(self._freeze)

    def _freeze(self) -> None:
        self._input.freeze()

    def latestOffset(self, start: Offset, limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        most = limit.max_files if isinstance(limit, limits.ReadMaxFiles) else None
        return _safely(lambda: dict(self._input.latest(start, most)))


def _safely(step: Callable[[], T]) -> T:
    """Our own errors as they are, anything else by its type and place: Spark logs its text, which may have a secret."""
    try:
        return step()
    except FencepostError as error:
        failed = error
    except Exception as error:  # noqa: BLE001 - see above
        failed = EpochFailed(
            "table_stream_failed",
            f"The stream of a table failed: {place_of(error)}.",
            safe=LATER,
            next="Start the job again. If it happens again, it is a bug in fencepost: please report it.",
        )
    raise failed.with_traceback(None) from None


def arrow_schema(schema: StructType) -> pa.Schema:
    """As this Spark wants the rows of a data source."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before Spark 4.2, which has no such argument
        return to_arrow_schema(schema)


def without_metadata(told: Any) -> Any:
    """A schema as Spark wants it."""
    if isinstance(told, list):
        return [without_metadata(one) for one in told]
    if not isinstance(told, Mapping):
        return told
    return {name: {} if name == "metadata" else without_metadata(value) for name, value in told.items()}
