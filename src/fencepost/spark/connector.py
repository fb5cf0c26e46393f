"""Spark's Kafka connector, which pyspark does not ship: is it there, and how does it get there.

Never adds a second version beside one that the user named: two connectors on one class path fail in strange ways.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fencepost.errors import BadConfig, Where
from fencepost.spark import commanded, session

ARTIFACT = "spark-sql-kafka-0-10"
PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
NAMED_IN = ("spark.jars.packages", "spark.jars", "spark.driver.extraClassPath")
"""Settings by which a user may have brought it."""


def coordinate(version: str) -> str:
    """The connector that belongs to this Spark; Spark 4 has one Scala."""
    plain = re.match(r"\d+\.\d+\.\d+", version)  # vendors add words of their own, and publish no connector for them
    return f"org.apache.spark:{ARTIFACT}_2.13:{plain[0] if plain else version}"


def with_package(conf: Mapping[str, str], version: str) -> dict[str, str]:
    """The settings of a session to be made, with the connector among its packages unless it comes another way."""
    conf = {**conf, **commanded.told()}
    told = [*(conf.get(key, "") for key in NAMED_IN), os.environ.get(commanded.SUBMIT, "")]
    if any(ARTIFACT in text for text in told) or _is_shipped():
        return conf
    packages = [conf.get("spark.jars.packages"), coordinate(version)]
    return {**conf, "spark.jars.packages": ",".join(filter(None, packages))}


def is_there(spark: Any) -> bool:
    """Can this session read Kafka?"""
    return session.finds_class(spark, PROVIDER)


def bring(spark: Any, job: str, *, ours: bool) -> None:
    """See that this session can read Kafka.

    A session of our own that began without the connector gets it now, resolved by Spark's own resolver. One that the
    user brought is left as it is: what is on its class path is not for us to choose.
    """
    if is_there(spark):
        return
    name = coordinate(spark.version)
    if ours and session.add_jars(spark, _resolved(spark, name)) and is_there(spark):
        return
    raise no_connector(job, spark.version)


def no_connector(job: str, version: str) -> BadConfig:
    """What to do without it."""
    name = coordinate(version)
    return BadConfig(
        "no_connector",
        "Spark's Kafka connector is not in this session, and could not be added.",
        where=Where(job=job),
        next=f"Start with it: spark-submit --packages {name} …, or in code, before the session is made, "
        f".config('spark.jars.packages', '{name}'). Without a network: conf={{'spark.jars': 'a.jar,b.jar'}}.",
    )


def _resolved(spark: Any, name: str) -> list[str]:
    """The jars of a package and of what it needs; none if there is no network, or no such package."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - pyspark may be absent when this module is imported

    jvm = spark._jvm
    try:
        found = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
            jvm.java.net.URI.create(f"ivy://{name}?transitive=true")
        )
    except Py4JJavaError:
        return []
    return [str(found.apply(index)) for index in range(found.size())]


def _is_shipped() -> bool:
    """Somebody put it beside Spark's own jars."""
    spec = find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), *(spec.submodule_search_locations or () if spec else ())]
    return any(jar for home in homes if home for jar in Path(home, "jars").glob(f"{ARTIFACT}_*.jar"))
