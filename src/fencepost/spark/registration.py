"""The driver's half of our own sources: makes a class of each (`table_source.py`) and registers it with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructType

from fencepost.errors import Where
from fencepost.spark import spark_session
from fencepost.spark.plan import TABLES
from fencepost.spark.table_source import Make, TableSource, without_metadata

LIMITED_SINCE = (4, 2)
"""The first Spark that says where an epoch begins before it asks how far it goes."""


def load(reader: Any, name: str, columns: Mapping[str, Any], options: Mapping[str, str], make: Make) -> Any:
    """A streaming DataFrame. `columns`: a schema in Spark's JSON; `options`: what may be printed, `location` first."""
    assert name in TABLES, "checks know our sources by name"
    spark = reader._spark
    if "maxfilespertrigger" in options:
        instead = "Take it out, or use"
        spark_session.need(spark.version, LIMITED_SINCE, "max_files_per_epoch needs", where=Where(), instead=instead)
    spark_session.bring_python(spark)
    _register(spark, name, options["location"], make)
    schema = StructType.fromJson(without_metadata(columns))
    return reader.format(name).schema(schema).options(**options).load()


_sessions: dict[tuple[str, str], dict[str, Make]] = {}
"""By session and name: what was registered last. A second registration is a warning in Spark's log."""


def _register(spark: Any, name: str, location: str, make: Make) -> None:
    known = _sessions.setdefault((str(spark._jsparkSession.sessionUUID()), name), {})
    if known.get(location) != make:
        known[location] = make
        made = {"made": dict(known), "name": classmethod(lambda cls: name)}
        # A class that cannot be imported: it is pickled with all that is in it.
        spark.dataSource.register(type("RegisteredSource", (TableSource,), made))
