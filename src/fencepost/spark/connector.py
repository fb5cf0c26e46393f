"""A connector that pyspark does not ship (Kafka's): is it in the session, and if not, how to add it.

    in the session already     somebody named it, or put it beside Spark's jars: nothing is added
    a session of our own       the package of this very Spark, else the one that is known to work with it
    a session of the user's    left as it is: what is on its class path is not for us to choose

Never adds a second version beside one that the user named: two connectors on one class path fail in strange ways.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fencepost.contract import Package
from fencepost.errors import BadConfig, Where
from fencepost.observe.terminal import Tell, nobody
from fencepost.spark import jvm, spark_session

SCALA = "2.13"
"""The only Scala version of Spark 4."""


def plain(version: str) -> str:
    """A version without a vendor's suffix, for which there is no connector."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    return found[0] if found else version


def coordinate(package: Package, version: str) -> str:
    """The connector for exactly this Spark version."""
    return f"org.apache.spark:{package.artifact}_{SCALA}:{plain(version)}"


def known(package: Package, version: str) -> tuple[str, ...]:
    """The newest set of packages known to work with this Spark; empty if none is known."""
    return package.known.get(plain(version).rpartition(".")[0], ())


def bring(
    package: Package,
    spark: Any,
    job: str,
    *,
    ours: bool,
    say: Callable[[str], None] = lambda text: None,
    tell: Tell = nobody,
) -> None:
    """Make sure that this session has the connector; `say` prints a line, `tell` shows that a download goes on."""
    if jvm.finds_class(spark, package.provider):
        return
    exact, tested = coordinate(package, spark.version), known(package, spark.version)
    if ours:
        for names in _in_order(spark, exact, tested):
            jars = _downloaded(spark, names, say, tell)
            if jars and spark_session.add_jars(spark, jars) and jvm.finds_class(spark, package.provider):
                if names is tested:
                    say(f"{package.title}: using {tested[0]}, which works with Spark {spark.version}; {exact} "
                        "could not be had")  # fmt: skip
                return
    wanted = tested or (exact,)
    packages, files = ",".join(wanted), ",".join(map(_file, wanted))
    tried = [exact, *tested[:1]] if ours else []
    raise BadConfig(
        "no_connector",
        f"Spark's {package.title} connector is not in this session"
        + (f", and could not be downloaded: neither {' nor '.join(dict.fromkeys(tried))}." if tried else "."),
        where=Where(job=job),
        next=f"With a network: start with spark-submit --packages {packages} …, or create your session with "
        f".config('spark.jars.packages', '{packages}'). Behind a mirror: set conf={{'spark.jars.ivySettings': "
        "'ivysettings.xml'} or 'spark.jars.repositories'. Without a network: copy these jars from a machine with "
        f"one, and set fp.Job(…, conf={{'spark.jars': '{files}'}}).",
    )


def _in_order(spark: Any, exact: str, tested: tuple[str, ...]) -> list[tuple[str, ...]]:
    """This Spark's own version first, unless another is already in the cache and needs no network."""
    choices = [(exact,), *([tested] if tested and tested[0] != exact else [])]
    return sorted(choices, key=lambda names: not _is_cached(spark, names[0]))


def _is_cached(spark: Any, name: str) -> bool:
    """Has Ivy downloaded it before?"""
    organisation, artifact, _ = name.split(":")
    folder = spark.conf.get("spark.jars.ivy", None)
    homes = [Path(folder)] if folder else sorted(Path.home().glob(".ivy2*"))
    return any((home / "cache" / organisation / artifact / "jars" / _file(name)).is_file() for home in homes)


def _file(name: str) -> str:
    _, artifact, version = name.split(":")
    return f"{artifact}-{version}.jar"


def _downloaded(spark: Any, names: Sequence[str], say: Callable[[str], None], tell: Tell) -> list[str]:
    """As `_resolved`; what Ivy has to fetch first takes a while, and only the cache knows that it has to."""
    if _is_cached(spark, names[0]):
        return _resolved(spark, names)
    tell(f"Downloading {names[0]}", 0, 0)
    began = time.monotonic()
    jars = _resolved(spark, names)
    if jars:
        files = [Path(jar.removeprefix("file:")) for jar in jars]
        size = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
        say(f"downloaded {names[0]}: {len(jars)} jars, {size:,.1f} MB, {time.monotonic() - began:.0f} s")
    return jars


def _resolved(spark: Any, names: Sequence[str]) -> list[str]:
    """The jars of these packages; a single package comes with its dependencies. Empty without a network or package."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - pyspark may be absent when this module is imported

    java = spark._jvm
    transitive = str(len(names) == 1).lower()
    jars = []
    try:
        for name in names:
            found = java.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
                java.java.net.URI.create(f"ivy://{name}?transitive={transitive}")
            )
            jars += [str(found.apply(index)) for index in range(found.size())]
    except Py4JJavaError:
        return []
    return jars
