"""A real Iceberg REST catalog on loopback: Nessie, with its tables in an S3 store of the rig. Needs Java 21.

It keeps what it knows in memory: after a kill it is another, empty catalog.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fencepost_proof.rig.jars import NESSIE, RigFailed, fetch, java
from fencepost_proof.rig.process import HOST
from fencepost_proof.rig.s3 import KEY, REGION, SECRET, Endpoint
from fencepost_proof.rig.server import Server

NEEDED = 21
HOMES = ("JAVA_21_HOME", "JAVA_HOME")
"""Variables that may name a Java of that version; else the one on the path is looked at."""


@dataclass
class Nessie(Server):
    """A catalog. `settings` are properties of its own."""

    store: Endpoint = field(kw_only=True)
    bucket: str = field(kw_only=True)

    ports_needed = 2

    @property
    def catalog(self) -> dict[str, str]:
        """What pyiceberg is given."""
        return {
            "type": "rest",
            "uri": f"http://{HOST}:{self.port}/iceberg/main",
            "s3.endpoint": self.store.endpoint,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "s3.region": REGION,
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        }

    def _initialise(self, data: Path) -> None:
        """Nothing: it is in memory."""

    def _command(self) -> Sequence[str | Path]:
        found = java_21()
        if found is None:
            raise RigFailed(f"Nessie needs Java {NEEDED}: install it, and name its folder in {HOMES[0]}.")
        port, management = self._ports
        store = "nessie.catalog.service.s3.default-options"
        chosen = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": str(port),
            "quarkus.management.host": HOST,
            "quarkus.management.port": str(management),
            "quarkus.otel.sdk.disabled": "true",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "rig",
            "nessie.catalog.warehouses.rig.location": f"s3://{self.bucket}/rig",
            f"{store}.endpoint": self.store.endpoint,
            f"{store}.region": REGION,
            f"{store}.path-style-access": "true",
            f"{store}.request-signing-enabled": "false",
            f"{store}.access-key": "urn:nessie-secret:quarkus:rig",
            "rig.name": KEY,
            "rig.secret": SECRET,
        }
        chosen |= self.settings
        [jar] = fetch(NESSIE)
        options = [f"-D{key}={value}" for key, value in chosen.items()]
        return [found, "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options, "-jar", jar]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/iceberg/v1/config", timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def java_21() -> str | None:
    """A Java that is new enough; None if there is none."""
    named = [f"{os.environ[name]}/bin/java" for name in HOMES if os.environ.get(name)]
    for one in (*named, java()):
        if not Path(one).exists():
            continue
        said = subprocess.run([one, "-version"], check=False, capture_output=True, text=True).stderr
        if (found := re.search(r'version "(\d+)', said)) and int(found[1]) >= NEEDED:
            return one
    return None
