"""A real S3 server on loopback: s3proxy, with objects as files and a PUT `If-None-Match: *` that has one winner.

Never asks who comes: signatures are neither needed nor looked at.
"""

from __future__ import annotations

import http.client
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fencepost_proof.rig.jars import S3_SERVER, S3A, RigFailed, fetch, java
from fencepost_proof.rig.process import HOST, LOGBACK
from fencepost_proof.rig.server import Server, Several

KEY, SECRET, REGION = "test", "test-secret", "us-east-1"
"""Clients want to sign with something."""


class Endpoint:
    """What clients of an S3 address are given: Spark's settings, and the environment of those that are not Spark."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Where it is: `http://127.0.0.1:PORT`."""

    @property
    def settings(self) -> dict[str, str]:
        """What a Spark session is given for `s3a://`, beside `jars`."""
        chosen = {
            "endpoint": self.endpoint,
            "endpoint.region": REGION,
            "access.key": KEY,
            "secret.key": SECRET,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        }
        return {f"spark.hadoop.fs.s3a.{key}": value for key, value in chosen.items()}

    @property
    def jars(self) -> list[Path]:
        """What `spark.jars` needs for `s3a://`."""
        return fetch(S3A)

    @property
    def environment(self) -> dict[str, str]:
        """What Amazon's clients for Python read."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",  # else they ask the network who they are
        }

    @staticmethod
    def url(bucket: str) -> str:
        """A bucket as Spark names it."""
        return f"s3a://{bucket}"

    def make_bucket(self, name: str) -> str:
        """An empty bucket, of at least three letters; its URL."""
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        try:
            connection.request("PUT", f"/{name}")
            answer = connection.getresponse()
            said = answer.read().decode(errors="replace")
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise RigFailed(f"The bucket {name} could not be made: {answer.status} {said}")
        return self.url(name)


@dataclass
class S3(Several, Endpoint):
    """An S3 server. `s3.kill()` and `s3.start()` keep its port, its buckets and its objects.

    `FileSystem.create(path, overwrite=False)` of `s3a://` is not exclusive on any S3 server, this one too.
    """

    folder: Path
    server: S3Proxy = field(init=False)

    def __post_init__(self) -> None:
        """One process, not started yet."""
        self.server = S3Proxy(self.folder)

    @property
    def servers(self) -> tuple[Server, ...]:
        """The one."""
        return (self.server,)

    @property
    def endpoint(self) -> str:
        """Where it is: `http://127.0.0.1:PORT`."""
        return f"http://{HOST}:{self.server.port}"


@dataclass
class S3Proxy(Server):
    """The process. `settings` are lines of its properties file."""

    def _initialise(self, data: Path) -> None:
        """A bucket is a folder, and there is none yet."""

    def _command(self) -> Sequence[str | Path]:
        home = self.folder.resolve()
        chosen = {
            "s3proxy.authorization": "none",
            "s3proxy.endpoint": f"http://{HOST}:{self.port}",
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.data),
        }
        chosen |= self.settings
        (home / "s3proxy.conf").write_text("".join(f"{key}={value}\n" for key, value in chosen.items()))
        (home / "logback.xml").write_text(LOGBACK)
        return [
            *(java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-Dlogback.configurationFile={home / 'logback.xml'}", f"-Djava.io.tmpdir={home}"),
            *("-cp", ":".join(map(str, fetch(S3_SERVER))), "org.gaul.s3proxy.Main"),
            *("--properties", home / "s3proxy.conf"),
        ]
