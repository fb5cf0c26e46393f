"""What becomes of a record that cannot be used: it ends the epoch, or goes to the dead letters, in the same decision.

    lines ──→ parse | map ──┬─ good rows ───→ plain DataFrame ──→ job.write(…)
                            └─ bad records ─→ the dead letters' sink

Never looks at a record twice with two results: a record is in the rows or in the dead letters of its epoch, never in
both and never in neither (see spark/poison.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fencepost.errors import BadConfig, Where
from fencepost.sinks.contract import Sink
from fencepost.spark import inspect, parsing, poison

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

OnBadRecord = Literal["fail", "dead_letter"]


class BadRecords(ABC):
    """The part of a job that keeps bad records from its plan. `Job` is one."""

    name: str
    _branches: dict[str, tuple[Any, Sink]]
    _dead: frozenset[str] = frozenset()
    """The branches of dead letters."""

    def parse(
        self,
        frame: DataFrame,
        *,
        schema: str | StructType,
        column: str = "value",
        keep: Sequence[str] = (),
        on_bad_record: OnBadRecord = "fail",
        dead_letters: Sink | None = None,
    ) -> DataFrame:
        """Parse a column of JSON texts into columns.

            orders = job.parse(
                lines,
                schema="id BIGINT NOT NULL, amount DOUBLE",
                on_bad_record="dead_letter",
                dead_letters=fp.SQLite("dead.db", table="dead_letters"),
            )

        Bad is a record that is no JSON object, has more behind it, has a value of another type, or lacks a field that
        is NOT NULL. A field that the schema does not name is ignored.

        The mistake people make: `from_json` alone. It makes a null of what it cannot read, and says nothing.

        Args:
            frame: A streaming DataFrame.
            schema: The fields, 'id BIGINT NOT NULL, amount DOUBLE' or a StructType.
            column: The column with the texts; bytes are taken as UTF-8.
            keep: Other columns that are to stay.
            on_bad_record: 'fail' ends the epoch before its decision; 'dead_letter' sends the record to `dead_letters`.
            dead_letters: The sink of bad records: source, position, record, error. Several steps may share it.
        """
        dead = self._check(frame, on_bad_record, dead_letters)
        inspect.check_frame(frame, self.name)
        good, bad = parsing.parsed(
            frame, self.name, schema, column, tuple(keep), sink=None if dead is None else dead.name
        )
        return self._split(good, bad, dead)

    def map(
        self,
        frame: DataFrame,
        fn: Callable[[Any], Any],
        *,
        output: str | StructType,
        on_bad_record: OnBadRecord = "fail",
        dead_letters: Sink | None = None,
    ) -> DataFrame:
        """Map every record with a Python function: `fn(record)` returns a row, a list of rows, or None for none.

            def to_order(line):
                number, amount = line.value.split(";")
                return int(number), float(amount)

            orders = job.map(
                lines,
                to_order,
                output="id BIGINT, amount DOUBLE",
                on_bad_record="dead_letter",
                dead_letters=fp.SQLite("dead.db", table="dead_letters"),
            )

        The record is a Row, a row is a tuple, a dict or a Row. Bad is a record for which `fn` raises, or returns a
        value that its column cannot hold. A result that is no row at all is `fn`'s own mistake, and ends the epoch.

        With dead letters `fn` is called once per record and attempt of the epoch, however many branches use its rows:
        its rows go through a shuffle, which keeps the order within a partition. So it may look things up, and may fail
        now and then. The mistake people make: an `except` in `fn` that returns None. The record is then gone.

        Args:
            frame: A streaming DataFrame.
            fn: From a record to its rows.
            output: The columns of the rows, 'id BIGINT, amount DOUBLE' or a StructType.
            on_bad_record: 'fail' ends the epoch before its decision; 'dead_letter' sends the record to `dead_letters`.
            dead_letters: The sink of bad records: source, position, record, error. Several steps may share it.
        """
        dead = self._check(frame, on_bad_record, dead_letters)
        inspect.check_frame(frame, self.name)
        good, bad = poison.mapped(frame, self.name, fn, output, sink=None if dead is None else dead.name)
        return self._split(good, bad, dead)

    @abstractmethod
    def write(self, frame: DataFrame, sink: Sink) -> Any:
        """A job's own."""

    def _check(self, frame: Any, on_bad_record: str, dead: Any) -> Sink | None:
        """Refuse what cannot be; the sink of the dead letters, if there are to be any."""
        where = Where(job=self.name)
        if on_bad_record not in ("fail", "dead_letter"):
            raise BadConfig(
                "bad_on_bad_record",
                f"on_bad_record={on_bad_record!r} is unknown.",
                where=where,
                next="Use 'fail' (end the epoch) or 'dead_letter' (with dead_letters=…).",
            )
        if on_bad_record == "fail":
            if dead is not None:
                raise BadConfig(
                    "dead_letters_unused",
                    "dead_letters is given, but a bad record ends the epoch.",
                    where=where,
                    next="Say on_bad_record='dead_letter', or leave dead_letters out.",
                )
            return None
        if not isinstance(dead, Sink):
            raise BadConfig(
                "no_dead_letters",
                "on_bad_record='dead_letter' needs a sink for the dead letters.",
                where=where,
                next="Give one: dead_letters=fp.SQLite('dead.db', table='dead_letters').",
            )
        if dead.name in self._branches and (dead.name not in self._dead or self._branches[dead.name][1] != dead):
            raise BadConfig(
                "sink_twice",
                f"Another branch goes to a sink named {dead.name!r}.",
                where=where,
                next="Give the dead letters a target and a name (name=…) of their own; steps may share the very sink.",
            )
        if getattr(frame, "isStreaming", False) and inspect.states_of(frame):
            raise BadConfig(
                "state_before",
                "The DataFrame has state (an aggregate, a join, keyed state), which Spark would keep twice: for the "
                "rows and for the dead letters.",
                where=where,
                next="Parse and map the records as they come from the source, and aggregate what comes out.",
            )
        return dead

    def _split(self, good: DataFrame, bad: DataFrame | None, dead: Sink | None) -> DataFrame:
        if bad is not None and dead is not None:
            if dead.name in self._dead:
                self._branches[dead.name] = (self._branches[dead.name][0].unionAll(bad), dead)
            else:
                self.write(bad, dead)
                self._dead |= {dead.name}
        return good
