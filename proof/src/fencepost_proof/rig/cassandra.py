"""One real Cassandra node as a child process, from its jars and with a configuration of our own.

Never with Cassandra's default of syncing its log now and then, unless told: a kill would lose what it acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fencepost_proof.rig.jars import CASSANDRA, fetch, java
from fencepost_proof.rig.process import HOST, LOGBACK
from fencepost_proof.rig.server import Server


@dataclass
class Cassandra(Server):
    """A cluster of one node, without passwords and without keyspaces. `settings` are lines of cassandra.yaml.

    With `commitlog_sync: periodic`, its default elsewhere, a kill loses writes that were acknowledged.
    """

    ports_needed: ClassVar[int] = 2  # the second is for other nodes, which there are none of

    def run(self, cql: str) -> list[Any]:
        """One statement, by a client of its own."""
        from cassandra.cluster import (  # noqa: PLC0415 - loading it takes a moment
            EXEC_PROFILE_DEFAULT,
            Cluster,
            ExecutionProfile,
        )
        from cassandra.policies import RoundRobinPolicy  # noqa: PLC0415 - as above

        profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())}
        patience = {"connect_timeout": PATIENCE_S, "control_connection_timeout": PATIENCE_S}
        with Cluster([HOST], port=self.port, protocol_version=5, execution_profiles=profiles, **patience) as cluster:
            return list(cluster.connect().execute(cql, timeout=PATIENCE_S))

    def _initialise(self, data: Path) -> None:
        """Cassandra makes what it needs."""

    def _command(self) -> Sequence[str | Path]:
        jars = fetch(CASSANDRA)
        home = self.folder.absolute()
        (home / "cassandra.yaml").write_text(self._yaml())
        (home / "logback.xml").write_text(LOGBACK)
        [agent] = (jar for jar in jars if jar.name.startswith("jamm-"))
        properties = {
            "cassandra.config": f"file://{home}/cassandra.yaml",
            "cassandra.storagedir": self.data,
            "logback.configurationFile": home / "logback.xml",
            "java.io.tmpdir": self.data,
            "jna.tmpdir": self.data,
            "cassandra.ring_delay_ms": 0,
            "cassandra.superuser_setup_delay_ms": 0,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.memtable_row_overhead_computation_step": 1000,  # a calibration that takes seconds
        }
        options = [f"-D{key}={value}" for key, value in properties.items()]
        modules = [f"--add-exports={name}=ALL-UNNAMED" for name in EXPORTED]
        modules += [f"--add-opens={name}=ALL-UNNAMED" for name in OPENED]
        return [
            *(java(), *MEMORY, f"-javaagent:{agent}", *options, *modules),
            *("-cp", ":".join(map(str, jars)), "org.apache.cassandra.service.CassandraDaemon"),
        ]

    def _yaml(self) -> str:
        """JSON's brackets are YAML too, so that one line is one setting."""
        storage = self._ports[1]
        seeds = f'[{{class_name: {SEEDS}, parameters: [{{seeds: "{HOST}:{storage}"}}]}}]'
        chosen = SETTINGS | {
            "listen_address": HOST,
            "rpc_address": HOST,
            "storage_port": str(storage),
            "native_transport_port": str(self.port),
            "seed_provider": seeds,
            "data_file_directories": f"[{self.data / 'data'}]",
        }
        chosen |= {f"{name}_directory": str(self.data / name) for name in FOLDERS}
        chosen |= self.settings
        return "".join(f"{key}: {value}\n" for key, value in chosen.items())


PATIENCE_S = 60
"""Of a client, also on a machine that is busy with other tests."""

MEMORY = (
    *("-Xms256M", "-Xmx256M", "-XX:MaxDirectMemorySize=256M", "-Xss512k"),
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djdk.attach.allowAttachSelf=true"),
)
SEEDS = "org.apache.cassandra.locator.SimpleSeedProvider"
FOLDERS = ("commitlog", "saved_caches", "hints", "cdc_raw")

SETTINGS = {
    "cluster_name": "test",
    "num_tokens": "1",
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "commitlog_sync": "batch",
    "memtable_heap_space": "64MiB",
    "memtable_offheap_space": "64MiB",
    "commitlog_segment_size": "8MiB",
    "commitlog_total_space": "64MiB",
    "file_cache_size": "32MiB",
    "concurrent_reads": "4",
    "concurrent_writes": "4",
    "auto_snapshot": "false",
    "read_request_timeout": "20s",
    "write_request_timeout": "20s",
    "cas_contention_timeout": "20s",
}
"""One node, little memory, much patience."""


EXPORTED = (
    *(f"java.base/{name}" for name in ("jdk.internal.misc", "jdk.internal.ref", "java.lang.ref")),
    *("java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server"),
    *("java.sql/java.sql", "jdk.unsupported/sun.misc"),
)
"""What of Java's inside Cassandra uses."""

OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.module", "lang.reflect", "io", "nio")),
    *(f"java.base/java.util{name}" for name in ("", ".concurrent", ".concurrent.atomic")),
    *(f"java.base/jdk.internal.{name}" for name in ("loader", "ref", "reflect", "math", "module", "util.jar")),
    *("java.base/sun.nio.ch", "jdk.management/com.sun.management.internal"),
)
"""And what it looks into."""
