"""A checkpoint that cannot be read or written now, in words that say what to do."""

from __future__ import annotations

from fencepost.errors import RecoveryNeeded, Where
from fencepost.ledger import Unanswered
from fencepost.ledger.places import is_remote


def unusable(error: OSError, job: str, path: str) -> RecoveryNeeded:
    """The checkpoint cannot be read or written now."""
    safe = "Safe: nothing was half written; what is decided will be finished."
    if is_remote(path) and isinstance(error, PermissionError):
        return RecoveryNeeded(
            "store_denied",
            f"The checkpoint's store refuses us: {error.strerror}.",
            where=Where(job=job, path=path),
            safe=safe,
            next="Renew the credentials, or grant reading, writing, listing and deleting below this folder. A job with "
            "a restart strategy goes on by itself if its credentials come from a provider that renews them; keys "
            "that were given as settings of Spark need a new process: start it again.",
        )
    if is_remote(path) and isinstance(error, FileNotFoundError):
        return RecoveryNeeded(
            "store_missing",
            "There is no such bucket or store.",
            where=Where(job=job, path=path),
            safe=safe,
            next="Make the bucket, or mend the checkpoint's path; then start the job again.",
        )
    if isinstance(error, Unanswered):
        return RecoveryNeeded(
            "store_silent",
            f"The checkpoint's store does not answer: {error.strerror}.",
            where=Where(job=job, path=path),
            safe=safe,
            next="See that it is up and that its address is right. A job with a restart strategy goes on by itself "
            "then; otherwise start it again.",
        )
    return RecoveryNeeded(
        "checkpoint_unusable",
        f"The checkpoint cannot be read or written: {error.strerror or error}.",
        where=Where(job=job, path=path),
        safe=safe,
        next="Make the folder writable and see that its disk has room, then start the job again.",
    )
