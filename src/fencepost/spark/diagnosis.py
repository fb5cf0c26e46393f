"""Turns Spark's failures into our errors. Only names are taken from Spark's texts: the rest may quote a row."""

from __future__ import annotations

import re
from typing import Any

from fencepost.errors import LATER, EpochFailed, FencepostError, Where
from fencepost.spark import keyed_state, plan, spark_session
from fencepost.store.refusal import unusable


def names_of(error: Any) -> str:
    """The error names in one of Spark's messages; the message itself may quote a row (a cast that failed)."""
    found = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]|\b([A-Z]\w*(?:Error|Exception))\b", str(error))
    return ", ".join(list(dict.fromkeys(code or name for code, name in found))[:4]) or type(error).__name__


def from_task(text: str) -> FencepostError | None:
    """Our own error, taken out of Spark's message about the task that raised it; nothing else is taken."""
    found = re.search(
        r"fencepost\.errors\.EpochFailed: \[(\w+)\] (.*)\n(?:  where: .*\n)?  data:  (.*)\n  next:  (.*)", text
    )
    return found and EpochFailed(found[1], found[2], safe=found[3], next=found[4])


def at_the_start(error: Exception, job: str, checkpoint: str) -> FencepostError:
    """A query could not be started."""
    if spark_session.says_gone(error):
        return jvm_lost(job)
    return unusable(error, job, checkpoint) if isinstance(error, OSError) else from_spark(error, job)


def jvm_lost(job: str) -> EpochFailed:
    """Spark's JVM no longer answers."""
    return EpochFailed(
        "jvm_lost",
        "Spark's JVM died (it was killed, ran out of memory, or crashed).",
        where=Where(job=job),
        safe=LATER,
        next="Look for the cause (dmesg, hs_err_pid*.log, memory limits), then start the job in a new process.",
    )


def from_spark(error: Any, job: str) -> FencepostError:
    """Spark's own failure (the user's plan, a lost file, memory) as one of our errors, with the cause chained."""
    text = str(error)
    if (ours := from_task(text) or keyed_state.schema_refused(text) or plan.changed(text, job)) is not None:
        return ours.at(job=job)
    first = names_of(error)
    return EpochFailed(
        "spark_failed",
        f"The Spark query failed: {first}.",
        where=Where(job=job),
        safe=LATER,
        next="Fix the cause (Spark's own message is in its log, or shown by FENCEPOST_TRACE=1), then start the job "
        "again.",
    )
