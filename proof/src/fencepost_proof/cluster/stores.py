"""The two stores that a checkpoint can be on, as the attack sees them: what can be killed, and what lies there.

Never looks through fencepost: S3 by boto3, HDFS by plain requests to WebHDFS.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fencepost_proof.rig.hdfs import Hdfs
from fencepost_proof.rig.s3 import S3
from fencepost_proof.rig.server import Server, Several

FOLDER = "checkpoints"
WAIT_S = 10


class Away(Exception):
    """The store does not answer."""


class Place(ABC):
    """A store with room for checkpoints."""

    system: Several

    @property
    @abstractmethod
    def url(self) -> str:
        """A folder for all checkpoints."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, str]:
        """What Spark is given."""

    @property
    def jars(self) -> list[Path]:
        """What Spark needs beside its own."""
        return []

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """What clients without Spark are given."""

    @property
    @abstractmethod
    def victims(self) -> Mapping[str, Server]:
        """Its processes, by what people call them."""

    @abstractmethod
    def stamps(self, below: str) -> dict[str, str]:
        """Every file below a folder of `url`, with what tells a changed one from an unchanged one; or `Away`."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """One of them."""

    def names(self, below: str) -> list[str]:
        """The names of files in and below a folder, from there on."""
        return sorted(self.stamps(below))

    def copy(self, below: str, to: Path) -> None:
        """Files of a folder as files here."""
        for name in self.names(below):
            file = to / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.read(f"{below}/{name}"))


class OnHdfs(Place):
    """HDFS, by WebHDFS."""

    def __init__(self, system: Hdfs) -> None:
        self.system: Hdfs = system

    @property
    def url(self) -> str:
        """A folder for all checkpoints."""
        return f"{self.system.url}/{FOLDER}"

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark is given."""
        return self.system.settings

    @property
    def environment(self) -> Mapping[str, str]:
        """What clients without Spark are given."""
        return {"FENCEPOST_WEBHDFS": self.system.web}

    @property
    def victims(self) -> Mapping[str, Server]:
        """Two."""
        return {"the NameNode": self.system.name_node, "the DataNode": self.system.data_node}

    def stamps(self, below: str) -> dict[str, str]:
        """By length, time and the file's number, of which a new file has a new one."""
        found: dict[str, str] = {}
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for entry in self._list(f"{below}/{folder}" if folder else below):
                name = f"{folder}/{entry['pathSuffix']}".lstrip("/")
                if entry["type"] == "DIRECTORY":
                    waiting.append(name)
                else:
                    found[name] = f"{entry['length']} {entry['modificationTime']} {entry['fileId']}"
        return found

    def read(self, name: str) -> bytes:
        """From the NameNode to the DataNode."""
        return self._get(name, "OPEN")

    def _list(self, folder: str) -> list[dict[str, Any]]:
        try:
            said = json.loads(self._get(folder, "LISTSTATUS"))
        except FileNotFoundError:
            return []
        entries: list[dict[str, Any]] = said["FileStatuses"]["FileStatus"]
        return entries

    def _get(self, name: str, what: str) -> bytes:
        url = f"{self.system.web}/webhdfs/v1/{FOLDER}/{quote(name)}?op={what}"
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:  # noqa: S310 - loopback
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError(name) from None
            raise Away(f"HTTP {error.code}") from None
        except OSError as error:
            raise Away(str(error)) from None


class OnS3(Place):
    """S3, by boto3."""

    def __init__(self, system: S3, bucket: str = FOLDER) -> None:
        import boto3  # noqa: PLC0415 - only where there is such a store
        from botocore.config import Config  # noqa: PLC0415 - as above

        self.system: S3 = system
        self._bucket = bucket
        told = system.environment
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=told["AWS_ENDPOINT_URL"],
            aws_access_key_id=told["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=told["AWS_SECRET_ACCESS_KEY"],
            region_name=told["AWS_DEFAULT_REGION"],
            config=Config(connect_timeout=WAIT_S, read_timeout=WAIT_S, retries={"total_max_attempts": 1}),
        )

    @property
    def url(self) -> str:
        """A bucket for all checkpoints."""
        return self.system.url(self._bucket)

    @property
    def settings(self) -> Mapping[str, str]:
        """What Spark is given."""
        return self.system.settings

    @property
    def jars(self) -> list[Path]:
        """Spark's wheel has no client for S3."""
        return self.system.jars

    @property
    def environment(self) -> Mapping[str, str]:
        """What clients without Spark are given."""
        return self.system.environment

    @property
    def victims(self) -> Mapping[str, Server]:
        """One."""
        return {"the S3 server": self.system.server}

    def stamps(self, below: str) -> dict[str, str]:
        """By length, time and tag."""
        with answered():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=f"{below}/")
            entries = [entry for page in pages for entry in page.get("Contents", ())]
        return {
            entry["Key"].removeprefix(f"{below}/"): f"{entry['Size']} {entry['LastModified']} {entry['ETag']}"
            for entry in entries
            # Without a tag it is an upload that is not through; this server lists it under a name of its own.
            if not entry["Key"].endswith("/") and "ETag" in entry
        }

    def read(self, name: str) -> bytes:
        """One object."""
        with answered():
            return bytes(self._client.get_object(Bucket=self._bucket, Key=name)["Body"].read())


@contextmanager
def answered() -> Iterator[None]:
    """Say `Away` for whatever boto3 says when a server is gone or has just come."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as above

    try:
        yield
    except (BotoCoreError, ClientError, OSError) as error:
        raise Away(str(error)) from None


@contextmanager
def started(store: str, folder: Path) -> Iterator[Place]:
    """One of the two, for as long as the block."""
    if store == "hdfs":
        with Hdfs(folder / "hdfs") as hdfs:
            yield OnHdfs(hdfs)
    else:
        with S3(folder / "s3") as s3:
            s3.make_bucket(FOLDER)
            yield OnS3(s3)
