"""A real HDFS of one NameNode and one DataNode, two processes that are killed and started each on its own.

Never more than one copy of a block: what the DataNode's disk loses is lost.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
import zipfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self
from xml.sax.saxutils import escape

from fencepost_proof.rig.jars import HDFS, fetch, java, pyspark_home
from fencepost_proof.rig.process import HOST, LOGGING, until
from fencepost_proof.rig.server import Server, Several, run


@dataclass
class Hdfs(Several):
    """A file system for `hdfs://`, with WebHDFS and without permissions.

    After a kill of either node call `start()`, not the node's own: only it waits until files can be read and written.
    """

    folder: Path
    name_node: NameNode = field(init=False)
    data_node: DataNode = field(init=False)

    def __post_init__(self) -> None:
        """Two nodes, not started yet."""
        self.name_node = NameNode(self.folder / "name-node")
        self.data_node = DataNode(self.folder / "data-node", name_node=self.name_node)

    @property
    def servers(self) -> tuple[Server, ...]:
        """The NameNode first: the other one reports to it."""
        return (self.name_node, self.data_node)

    def start(self) -> Self:
        """Start what does not run, and wait until files can be read and written."""
        super().start()
        until(lambda: self.name_node.is_operational() and self.data_node.is_registered(), "HDFS left its safe mode")
        return self

    @property
    def url(self) -> str:
        """Its root: `hdfs://127.0.0.1:PORT`."""
        return self.name_node.url

    @property
    def web(self) -> str:
        """Where WebHDFS is: `http://127.0.0.1:PORT`."""
        return self.name_node.web

    @property
    def settings(self) -> dict[str, str]:
        """What a Spark session is given to use it, and to outlive some seconds without a NameNode."""
        return {f"spark.hadoop.{key}": value for key, value in CLIENT.items()}


@dataclass
class Node(Server):
    """One of the two: a JVM with pyspark's Hadoop and a configuration of its own."""

    program: ClassVar[str]

    def is_there(self) -> bool:
        """Does its web server answer?"""
        return self.ask("java.lang:type=Runtime") is not None

    def ask(self, bean: str) -> dict[str, Any] | None:
        """What it says about itself by JMX; nothing if it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.web}/jmx?qry={bean}", timeout=2) as answer:  # noqa: S310 - loopback
                beans = json.load(answer)["beans"]
        except (OSError, ValueError):
            return None
        return dict(beans[0]) if beans else None

    @property
    def web(self) -> str:
        """Its web server."""
        return f"http://{HOST}:{self._ports[1]}"

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _answers(self) -> bool:
        return super()._answers() and self.is_there()

    def _command(self) -> Sequence[str | Path]:
        self._configure(self._sites())
        return [*self._java(), self.program]

    @abstractmethod
    def _sites(self) -> Mapping[str, str]:
        """Its part of the configuration."""

    def _configure(self, sites: Mapping[str, str]) -> None:
        temporary = {"hadoop.tmp.dir": str(self.folder.resolve() / "tmp")}
        chosen = {**SETTINGS, **CLIENT, **temporary, **sites, **self.settings}
        properties = "".join(
            f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
            for key, value in chosen.items()
        )
        conf = self.folder / "conf"
        conf.mkdir(exist_ok=True)
        for name in ("core-site.xml", "hdfs-site.xml"):  # each key is looked for in one of them: both have all
            (conf / name).write_text(f"<configuration>\n{properties}</configuration>\n")
        (conf / "log4j2.properties").write_text(LOGGING)

    def _java(self) -> list[str]:
        places = [self.folder.resolve() / "conf", unpacked(), pyspark_home() / "jars" / "*"]
        return [java(), *MEMORY, "-cp", ":".join(map(str, places))]


@dataclass
class NameNode(Node):
    """Knows the names of files and where their blocks are. Its port is that of `hdfs://`."""

    ports_needed: ClassVar[int] = 2
    program: ClassVar[str] = "org.apache.hadoop.hdfs.server.namenode.NameNode"

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"hdfs://{HOST}:{self.port}"

    def is_operational(self) -> bool:
        """Has it left its safe mode, with a DataNode that said how much room it has, and which blocks?"""
        seen = self.ask("Hadoop:service=NameNode,name=FSNamesystemState") or {}
        has_room = seen.get("NumLiveDataNodes", 0) >= 1 and seen.get("CapacityRemaining", 0) > 0
        return seen.get("FSState") == "Operational" and has_room and seen.get("NumStaleStorages") == 0

    def _initialise(self, data: Path) -> None:
        self._configure({"dfs.namenode.name.dir": data.as_uri(), "fs.defaultFS": f"hdfs://{HOST}"})
        run([*self._java(), self.program, "-format", "-force", "-nonInteractive"])

    def _sites(self) -> Mapping[str, str]:
        return {
            "fs.defaultFS": self.url,
            "dfs.namenode.name.dir": self.data.as_uri(),
            "dfs.namenode.rpc-address": f"{HOST}:{self.port}",
            "dfs.namenode.http-address": f"{HOST}:{self._ports[1]}",
        }


@dataclass
class DataNode(Node):
    """Keeps the blocks of files, and serves their bytes. Its port is the one for blocks."""

    name_node: NameNode = field(kw_only=True, repr=False)
    ports_needed: ClassVar[int] = 3
    program: ClassVar[str] = "org.apache.hadoop.hdfs.server.datanode.DataNode"

    def is_registered(self) -> bool:
        """Does this process, not one before it, belong to the NameNode that runs now, which knows its blocks?"""
        seen = self.ask("Hadoop:service=DataNode,name=DataNodeInfo") or {}
        actors = json.loads(seen.get("BPServiceActorInfo") or "[]")
        return bool(actors) and all(actor["ActorState"] == "RUNNING" for actor in actors)

    def _sites(self) -> Mapping[str, str]:
        return {
            "fs.defaultFS": self.name_node.url,
            "dfs.datanode.data.dir": self.data.as_uri(),
            "dfs.datanode.hostname": HOST,  # where WebHDFS sends its clients for bytes
            "dfs.datanode.address": f"{HOST}:{self.port}",
            "dfs.datanode.http.address": f"{HOST}:{self._ports[1]}",
            "dfs.datanode.ipc.address": f"{HOST}:{self._ports[2]}",
        }


def unpacked() -> Path:
    """The jar as a folder, unpacked once beside it: a node reads through all of it at each start, for its web pages."""
    [jar] = fetch(HDFS)
    classes = jar.with_name("unpacked")
    if not classes.is_dir():
        with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=jar.parent) as temp, zipfile.ZipFile(jar) as packed:
            whole = Path(temp) / "whole"
            packed.extractall(whole)
            try:
                whole.rename(classes)
            except OSError:  # another process was first
                if not classes.is_dir():
                    raise
    return classes


MEMORY = (
    *("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-Djava.net.preferIPv4Stack=true", "--add-opens=java.base/java.lang=ALL-UNNAMED"),
)

CLIENT = {
    "dfs.replication": "1",
    "dfs.client.block.write.replace-datanode-on-failure.enable": "false",
    "dfs.client.retry.policy.enabled": "true",
    "dfs.client.retry.policy.spec": "500,20,1000,50",
}
"""One DataNode, and a minute of tries while the NameNode is away or in its safe mode."""

SETTINGS = {
    "dfs.permissions.enabled": "false",
    "dfs.namenode.safemode.extension": "1000",  # until the DataNode has said, after its name, how much room it has
    "dfs.namenode.safemode.min.datanodes": "1",
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "1000",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
}
"""A DataNode that is gone is known to be gone after twelve seconds, not after ten minutes."""
