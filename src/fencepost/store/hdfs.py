"""HDFS without Java: through WebHDFS, which every NameNode serves at its web address, or an HttpFS gateway.

    FENCEPOST_WEBHDFS       http://host:9870, several separated by commas
    HADOOP_CONF_DIR         else the http addresses of the URL's name service, from hdfs-site.xml in that folder
    port 9870               else, on the host in the URL

Identifies itself with `user.name`, as Hadoop does without Kerberos; a cluster that requires Kerberos denies access.
"""

from __future__ import annotations

import errno
import getpass
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

import requests

from fencepost.store.base import CONNECT_S, READ_S, Found, Remote, Unanswered, split, temp_beside, together

WEB_PORT: Final = 9870
ADDRESS: Final = "FENCEPOST_WEBHDFS"
PIECE: Final = 1 << 20

TAKEN: Final = {"FileAlreadyExistsException"}
ABSENT: Final = {"FileNotFoundException"}
DENIED: Final = {"AccessControlException", "AuthenticationException", "AuthorizationException", "SecurityException"}
FULL: Final = {"DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"}


class WebHdfsRemote(Remote):
    """HDFS through its NameNode's web address."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._answered: dict[str, str] = {}
        """By name service, the NameNode that answered last; the others may be on standby."""

    def create(self, url: str, data: bytes) -> bool:
        """Write a temporary file, then rename it, which the NameNode refuses if the name is taken."""
        temp = temp_beside(url)
        self._write(temp, data)
        try:
            self._rename(temp, url, "NONE")
        except FileExistsError:
            self.delete(temp)
            return False
        return True

    def replace(self, url: str, data: bytes) -> None:
        """Write a temporary file, then rename it over whatever is there."""
        temp = temp_beside(url)
        self._write(temp, data)
        self._rename(temp, url, "OVERWRITE")

    def _rename(self, temp: str, url: str, how: str) -> None:
        self._ask("PUT", temp, "RENAME", destination=_path(url), renameoptions=how)

    def _write(self, url: str, data: Any) -> None:
        """Durably: the DataNode syncs the block when it is complete. Missing folders are created."""
        with _told(url):
            how = "CREATE,OVERWRITE,SYNC_BLOCK"
            asked = self._ask("PUT", url, "CREATE", overwrite="true", createflag=how, noredirect="true")
            there = asked.json()["Location"]
            headers = {"Content-Type": "application/octet-stream"}
            _check(self._session.put(there, data=data, headers=headers, timeout=(CONNECT_S, READ_S)), url)

    def read(self, url: str) -> bytes | None:
        try:
            with _told(url):
                return self._ask("GET", url, "OPEN").content
        except FileNotFoundError:
            return None

    def look(self, url: str) -> Found | None:
        try:
            with _told(url):
                return _found(self._ask("GET", url, "GETFILESTATUS").json()["FileStatus"], url.rpartition("/")[2])
        except FileNotFoundError:
            return None

    def list(self, url: str) -> Sequence[Found]:
        try:
            with _told(url):
                entries = self._ask("GET", url, "LISTSTATUS").json()["FileStatuses"]["FileStatus"]
        except FileNotFoundError:
            return []
        # Without a pathSuffix, the URL is a file and not a folder.
        found = [_found(entry, entry["pathSuffix"]) for entry in entries if entry["pathSuffix"]]
        return sorted(found, key=lambda one: one.name)

    def below(self, url: str) -> Sequence[Found]:
        """Level by level: WebHDFS has no recursive listing."""
        files: list[Found] = []
        level = [""]
        while level:
            inside = together(self.list, [f"{url}/{folder}".rstrip("/") for folder in level])
            found = [
                replace(one, name=f"{folder}/{one.name}".lstrip("/"))
                for folder, ones in zip(level, inside, strict=True)
                for one in ones
            ]
            level = [one.name for one in found if one.is_folder]
            files += [one for one in found if not one.is_folder]
        return sorted(files, key=lambda one: one.name)

    def delete(self, url: str) -> None:
        self._ask("DELETE", url, "DELETE", recursive="true")

    def fetch(self, url: str, to: Path) -> None:
        with _told(url), self._ask("GET", url, "OPEN", stream=True) as answer, to.open("wb") as file:
            for piece in answer.iter_content(PIECE):
                file.write(piece)

    def send(self, path: Path, url: str) -> None:
        with path.open("rb") as file:
            self._write(url, file)

    def _ask(self, method: str, url: str, op: str, *, stream: bool = False, **arguments: str) -> requests.Response:
        """Ask the active NameNode. Skip only a node that certainly did nothing: any other may have done it."""
        service = split(url)[0]
        known = self._answered.get(service)
        nodes = addresses(service)
        for node in sorted(nodes, key=lambda node: node != known):
            with _told(url):
                try:
                    answer = self._session.request(
                        method,
                        f"{node}/webhdfs/v1{quote(_path(url))}",
                        params={"op": op, "user.name": _user(), **arguments},
                        timeout=(CONNECT_S, READ_S),
                        stream=stream,
                    )
                except requests.ConnectTimeout:
                    continue
                except requests.ConnectionError:
                    if len(nodes) > 1 and method == "GET":
                        continue
                    raise
                if _said(answer) == "StandbyException":
                    continue
                self._answered[service] = node
                return _check(answer, url)
        raise Unanswered(errno.EIO, "no NameNode is active", url)

    @property
    def _session(self) -> requests.Session:
        """One per thread: a session keeps its connections open, and is not thread-safe."""
        if not hasattr(self._here, "session"):
            self._here.session = requests.Session()
            self._here.session.trust_env = False  # proxies and .netrc are not for the nodes of a cluster
        session: requests.Session = self._here.session
        return session


def addresses(service: str) -> list[str]:
    """The web addresses of the NameNodes of a name service, or of a `host:port`."""
    if said := os.environ.get(ADDRESS):
        return [_address(one) for one in said.split(",") if one.strip()]
    site = _site()
    nodes = [node.strip() for node in site.get(f"dfs.ha.namenodes.{service}", "").split(",") if node.strip()]
    named = [site.get(f"dfs.namenode.http-address.{service}.{node}", "") for node in nodes]
    host = service.partition(":")[0]
    alone = site.get("dfs.namenode.http-address", "").replace("0.0.0.0", host)  # noqa: S104 - read, not bound
    return [_address(one) for one in named if one] or [_address(alone or f"{host}:{WEB_PORT}")]


def _address(text: str) -> str:
    text = text.strip().rstrip("/")
    return text if "//" in text else f"http://{text}"


def _site() -> Mapping[str, str]:
    """Hadoop's own settings on this machine."""
    folder = os.environ.get("HADOOP_CONF_DIR")
    file = Path(folder or "") / "hdfs-site.xml"
    if not folder or not file.is_file():
        return {}
    found = ET.parse(file).getroot().iter("property")  # noqa: S314 - the administrator's own file
    return {entry.findtext("name", ""): entry.findtext("value", "") for entry in found}


def _user() -> str:
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _path(url: str) -> str:
    return f"/{split(url)[1]}"


def _found(entry: Mapping[str, Any], name: str) -> Found:
    is_folder = entry["type"] == "DIRECTORY"
    return Found(
        name, is_folder, entry["length"], entry["modificationTime"] / 1000, "-" if is_folder else str(entry["fileId"])
    )


def _said(answer: requests.Response) -> str:
    """For a refusal, the name of Java's exception, or the HTTP status; "" if there is none."""
    if answer.ok:
        return ""
    try:
        return re.split(r"[.$]", str(answer.json()["RemoteException"]["exception"]))[-1]
    except (ValueError, KeyError, TypeError):
        return str(answer.status_code)


def _check(answer: requests.Response, url: str) -> requests.Response:
    if answer.ok:
        return answer
    said = _said(answer)
    if said in ABSENT:
        raise FileNotFoundError(errno.ENOENT, "No such file", url)
    if said in TAKEN:
        raise FileExistsError(errno.EEXIST, "the name is taken", url)
    if said in DENIED or said in ("401", "403"):
        raise PermissionError(errno.EACCES, f"the store denies access ({said})", url)
    if said in FULL:
        raise OSError(errno.ENOSPC, "the store is full", url)
    raise Unanswered(errno.EIO, said, url)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn errors of requests into ours: its own are OSErrors too, but with unhelpful texts."""
    try:
        yield
    except requests.RequestException as error:
        raise Unanswered(errno.EIO, type(error).__name__, url) from None
    except (KeyError, ValueError) as error:  # something else answers there
        raise Unanswered(errno.EIO, f"the answer is not WebHDFS ({type(error).__name__})", url) from None
