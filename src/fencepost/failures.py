"""What Spark's own failures mean, in our words. Of Spark's texts only names are taken: they may quote a row."""

from __future__ import annotations

import re
from typing import Any

from fencepost.errors import LATER, EpochFailed, FencepostError, Where
from fencepost.spark import keyed, named, session, topics
from fencepost.unusable import unusable


def names_of(error: Any) -> str:
    """The names of errors in one of Spark's texts; the text itself may quote a row (a cast that failed)."""
    found = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]|\b([A-Z]\w*(?:Error|Exception))\b", str(error))
    return ", ".join(list(dict.fromkeys(code or name for code, name in found))[:4]) or type(error).__name__


def from_task(text: str) -> FencepostError | None:
    """Our own error out of Spark's text about a task that raised it; of the text nothing else is taken."""
    found = re.search(
        r"fencepost\.errors\.EpochFailed: \[(\w+)\] (.*)\n(?:  where: .*\n)?  data:  (.*)\n  next:  (.*)", text
    )
    return found and EpochFailed(found[1], found[2], safe=found[3], next=found[4])


def at_the_start(error: Exception, job: str, checkpoint: str) -> FencepostError:
    """A query could not be started."""
    if session.says_gone(error):
        return jvm_lost(job)
    return unusable(error, job, checkpoint) if isinstance(error, OSError) else from_spark(error, job)


def jvm_lost(job: str) -> EpochFailed:
    """Nobody answers any more."""
    return EpochFailed(
        "jvm_lost",
        "Spark's JVM died (killed, out of memory, or crashed).",
        where=Where(job=job),
        safe=LATER,
        next="Look for the reason (dmesg, hs_err files, memory limits), then start the job in a new process.",
    )


def from_spark(error: Any, job: str) -> FencepostError:
    """Spark's own failure (the user's plan, a lost file, memory) in our words; the cause is chained."""
    if topics.says_lost(str(error)):
        return topics.range_lost(job)
    text = str(error)
    if (ours := from_task(text) or keyed.schema_refused(text) or named.changed(text, job)) is not None:
        return ours.at(job=job)
    first = names_of(error)
    return EpochFailed(
        "spark_failed",
        f"Spark ended the query: {first}.",
        where=Where(job=job),
        safe=LATER,
        next="Mend the cause (Spark's own error is above), then start the job again.",
    )
