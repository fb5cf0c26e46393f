"""A remote store through the Hadoop file system of Spark's session: its settings, its credentials, its retries.

Never trusts `create(overwrite=false)`: on s3a it checks first and writes later, so two callers can both succeed.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from fencepost import faults
from fencepost.errors import BadConfig, Where
from fencepost.spark import spark_session
from fencepost.store.base import Found, Remote, Unanswered, temp_beside
from fencepost.store.path import scheme_of
from fencepost.store.retry import patient

CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
NO_PROBES: Final = "fs.s3a.create.performance"
"""The conditional PUT is enough: s3a need not check first for a folder of that name."""

TAKEN: Final = ("FileAlreadyExistsException", "AlreadyBeingCreatedException", "RemoteFileChangedException")
ABSENT: Final = ("FileNotFoundException", "NoSuchBucketException", "UnknownStoreException")
DENIED: Final = (
    "AccessDeniedException",
    "AccessControlException",
    "NoAuthWithAWSException",
    "CredentialInitializationException",
    "NoAwsCredentialsException",
)
NO_CLIENT: Final = ("ClassNotFoundException", "UnsupportedFileSystemException", "NoClassDefFoundError")


LOUD: Final = ("org.apache.hadoop.fs.s3a.S3ABlockOutputStream", "org.apache.hadoop.fs.s3a.S3AInstrumentation")


@cache
def through(context: Any) -> Remote:
    """Remote stores, reached through this context's session."""
    return patient(HadoopRemote(context))


class Taken(Exception):
    """A file of that name exists."""


class HadoopRemote(Remote):
    """HDFS or s3a, as the Spark of this process reaches it."""

    def __init__(self, context: Any) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - there is a context, so it is there

        spark = SparkSession._instantiatedSession or SparkSession(context)
        if not spark_session.bring_jar(spark):
            raise spark_session.no_jar("a checkpoint on a remote store")
        self._jvm = context._jvm
        self._gateway = context._gateway
        self._spark = spark
        self._conf: Any = None
        self._systems: dict[str, Any] = {}
        self._hush()

    def _hush(self) -> None:
        """s3a logs a refused create as a failed upload, with a page of statistics; for us it is a normal answer."""
        log4j = self._jvm.org.apache.logging.log4j
        for name in LOUD:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)

    def create(self, url: str, data: bytes) -> bool:
        try:
            with self._told(url, may_be_taken=_is_s3(url)):
                return self._put_if_absent(url, data) if _is_s3(url) else self._rename_if_absent(url, data)
        except Taken:
            return False

    def _put_if_absent(self, url: str, data: bytes) -> bool:
        system, path = self._at(url)
        builder = system.createFile(path).must(CONDITIONAL, True).opt(NO_PROBES, True)
        self._write(builder.build(), data)
        faults.reach("store.put")
        return True

    def _rename_if_absent(self, url: str, data: bytes) -> bool:
        system, path = self._at(url)
        temp = self._jvm.org.apache.hadoop.fs.Path(temp_beside(url))
        self._write(system.create(temp, False), data, sync=True)
        faults.reach("store.remote_temp_written")
        if system.rename(temp, path):
            faults.reach("store.renamed")
            return True
        taken = system.exists(path)
        system.delete(temp, False)
        if not taken:
            raise Unanswered(errno.EIO, "a rename failed for an unknown reason", url)
        return False

    def replace(self, url: str, data: bytes) -> None:
        with self._told(url):
            system, path = self._at(url)
            if _is_s3(url):
                self._write(system.createFile(path).overwrite(True).opt(NO_PROBES, True).build(), data)
                return
            temp = self._jvm.org.apache.hadoop.fs.Path(temp_beside(url))
            self._write(system.create(temp, False), data, sync=True)
            options = self._array(self._jvm.org.apache.hadoop.fs.Options.Rename, "OVERWRITE")
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(path.toUri(), self._conf)
            context.rename(temp, path, options)

    def read(self, url: str) -> bytes | None:
        try:
            with self._told(url):
                system, path = self._at(url)
                stream = system.open(path)
                try:
                    return bytes(stream.readAllBytes())
                finally:
                    stream.close()
        except FileNotFoundError:
            return None

    def look(self, url: str) -> Found | None:
        with self._told(url):
            found = _lines(self._jvm.fencepost.Listing.stat(*self._at(url)))
        return found[0] if found else None

    def list(self, url: str) -> Sequence[Found]:
        with self._told(url):
            return _lines(self._jvm.fencepost.Listing.names(*self._at(url)))

    def below(self, url: str) -> Sequence[Found]:
        with self._told(url):
            return _lines(self._jvm.fencepost.Listing.below(*self._at(url)))

    def delete(self, url: str) -> None:
        with self._told(url):
            system, path = self._at(url)
            system.delete(path, True)

    def unlink(self, url: str) -> None:
        """Delete without checking the file or its folder first: on s3a each check costs a request."""
        if not _is_s3(url):
            return self.delete(url)
        with self._told(url):
            system, path = self._at(url)
            bulk = system.createBulkDelete(path.getParent())
            try:
                failed = bulk.bulkDelete(self._jvm.java.util.Collections.singletonList(path))
            finally:
                bulk.close()
            if failed:
                denied = "AccessDenied" in str(failed[0].getValue())
                kind = PermissionError if denied else Unanswered
                raise kind(errno.EACCES if denied else errno.EIO, "an object could not be deleted", url)
        return None

    def fetch(self, url: str, to: Path) -> None:
        to.write_bytes(b"")  # so that a local disk error is raised by Python and not mistaken for the store's
        with self._told(url):
            system, path = self._at(url)
            stream = system.open(path)
            try:
                here = self._jvm.java.io.FileOutputStream(str(to))
                try:
                    stream.transferTo(here)
                finally:
                    here.close()
            finally:
                stream.close()

    def send(self, path: Path, url: str) -> None:
        with self._told(url):
            system, there = self._at(url)
            if _is_s3(url):
                out = system.createFile(there).overwrite(True).opt(NO_PROBES, True).build()
            else:  # sync each block when it is full: hsync covers only the last one
                out = system.createFile(there).recursive().overwrite(True).syncBlock().build()
            self._jvm.java.nio.file.Files.copy(self._jvm.java.io.File(str(path)).toPath(), out)
            if not _is_s3(url):
                out.hsync()
            out.close()

    def _write(self, out: Any, data: bytes, *, sync: bool = False) -> None:
        """An upload that failed is aborted, not closed: closing would publish half a file."""
        try:
            out.write(bytearray(data))
            if sync:
                out.hsync()
        except BaseException:
            if out.hasCapability("fs.capability.outputstream.abortable"):
                out.abort()
            raise
        out.close()

    def _at(self, url: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(url)
        root = "/".join(url.split("/")[:3])
        if root not in self._systems:
            # Read now, not in __init__: a per-bucket setting may have been added since.
            self._conf = self._spark._jsparkSession.sessionState().newHadoopConf()
            self._systems[root] = path.getFileSystem(self._conf)
        return self._systems[root], path

    def _array(self, kind: Any, option: str) -> Any:
        """One option as an array, for Java's varargs."""
        made = self._gateway.new_array(kind, 1)
        made[0] = getattr(kind, option)
        return made

    @contextmanager
    def _told(self, url: str, *, may_be_taken: bool = False) -> Iterator[None]:
        """Translate Java's exceptions to Python's by class only; their messages may quote what a user wrote."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - it comes with pyspark

        try:
            yield
        except Py4JJavaError as error:
            raise _translated(error.java_exception, url, may_be_taken=may_be_taken) from None
        except Exception as error:
            if spark_session.says_gone(error):  # not the store's fault: a retry would not help
                raise BrokenPipeError(errno.EPIPE, "Spark's JVM is gone", url) from error
            raise


def _translated(error: Any, url: str, *, may_be_taken: bool) -> Exception:
    names = _causes(error)
    said = str(error.getMessage() or "")
    if may_be_taken and any(name in TAKEN for name in names):
        return Taken(url)
    if any(name in NO_CLIENT for name in names) or "No FileSystem for scheme" in said:
        return BadConfig(
            "no_store_client",
            f"This Spark session has no file system for {url.partition(':')[0]}:// (the Hadoop class is missing).",
            where=Where(path=url),
            next="Add it to the session. For s3a: spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, where "
            "VERSION is that of Spark's hadoop-client-api jar.",
        )
    if any(name in DENIED for name in names) or "ExpiredToken" in said or "InvalidAccessKeyId" in said:
        what = "the credentials have expired" if "ExpiredToken" in said else "the store denies access"
        return PermissionError(errno.EACCES, what, url)
    if names[0] in ABSENT:
        return FileNotFoundError(errno.ENOENT, "No such file", url)
    if "No space left" in said or "DSQuotaExceededException" in names or "QuotaExceededException" in names:
        return OSError(errno.ENOSPC, "the store is full", url)
    return Unanswered(errno.EIO, _short(names), url)


def _causes(error: Any) -> list[str]:
    """Class names from the outside in; a RemoteException carries the class name of the server's exception."""
    names: list[str] = []
    while error is not None and len(names) < 10:
        names.append(str(error.getClass().getSimpleName()))
        if names[-1] == "RemoteException":
            names.append(re.split(r"[.$]", str(error.getClassName()))[-1])
        error = error.getCause()
    return names


def _short(names: Sequence[str]) -> str:
    return " from ".join(dict.fromkeys(names[:3]))


def _lines(text: str) -> list[Found]:
    found = []
    for line in filter(None, text.split("\n")):
        name, kind, size, changed, stamp = line.split("\t")
        found.append(Found(unquote(name), kind == "d", int(size), int(changed) / 1000, stamp))
    return found


def _is_s3(url: str) -> bool:
    return scheme_of(url) == "s3a"
