"""Small queries to the JVM behind a session. Imports nothing of ours: connectors use it, also in tasks."""

from __future__ import annotations

import re
from typing import Any


def release(version: str) -> tuple[int, int]:
    """(4, 2) of '4.2.1', whatever a vendor adds."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def java_class_of(error: Exception) -> str | None:
    """The class of a Java exception, or of its cause if it has one; None if the error is not Java's.

    The class only: the message may quote what a user wrote.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - pyspark may be absent when this module is imported

    if not isinstance(error, Py4JJavaError):
        return None
    raised = error.java_exception
    return str((raised.getCause() or raised).getClass().getSimpleName())


def finds_class(spark: Any, name: str) -> bool:
    """Is this Java class on the session's class path?"""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - pyspark may be absent when this module is imported

    try:
        spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True
