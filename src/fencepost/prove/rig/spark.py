"""Where the Spark is that pip installed: its jars carry more than Spark."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fencepost.prove.rig.jars import RigFailed


def pyspark_home() -> Path:
    """What Spark's own programs call SPARK_HOME; pyspark is not imported."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise RigFailed("There is no Spark: pip install 'fencepost[spark]' brings it.")
    return Path(places[0])
