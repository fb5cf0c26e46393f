"""The errors for a checkpoint that cannot be read or written now: they say what to do."""

from __future__ import annotations

from fencepost.errors import UNCHANGED, CheckpointRefused, FencepostError, RecoveryNeeded, Retryable, Where
from fencepost.store.base import Unanswered
from fencepost.store.path import is_remote

GOES_ON = {
    "store_denied": ". A job with a restart strategy then continues by itself if its credentials come from a provider "
    "that renews them; if the keys are Spark settings, start the job again in a new process.",
    "store_silent": ". A job with a restart strategy then continues by itself; otherwise start it again.",
}


def unusable(error: OSError, job: str, path: str) -> FencepostError:
    """For a job's checkpoint: what is decided waits for the next recovery."""
    return _failure(error, path, job)


def unreadable(error: OSError, path: str) -> FencepostError:
    """For a checkpoint that a command only reads."""
    return _failure(error, path, None)


def _failure(error: OSError, path: str, job: str | None) -> FencepostError:
    said = error.strerror or error
    if is_remote(path) and isinstance(error, PermissionError):
        needed = "to inspect: read and list; to run, stop or repair a job: also write and delete"
        code, what = "store_denied", f"The checkpoint's store denies access: {said}."
        cure = f"Renew the credentials, or grant the permissions needed below this folder ({needed})"
    elif is_remote(path) and isinstance(error, FileNotFoundError):
        code, what = "store_missing", "The bucket or store does not exist."
        cure = "Create the bucket, or correct the path"
    elif isinstance(error, Unanswered):
        code, what = "store_silent", f"The checkpoint's store does not answer: {said}."
        cure = "Check that it is up and its address correct (without Spark: AWS_ENDPOINT_URL, FENCEPOST_WEBHDFS)"
    elif job is None:
        code, what = "checkpoint_unreadable", f"Cannot read the checkpoint: {said}."
        cure = "Make the folder readable, or pass another one"
    else:
        code, what = "checkpoint_unusable", f"Cannot read or write the checkpoint: {said}."
        cure = "Make the folder writable, and check that its disk has free space"
    if job is None:
        kind = Retryable if code == "store_silent" else CheckpointRefused
        return kind(code, what, where=Where(path=path), safe=UNCHANGED, next=f"{cure}, then try again.")
    return RecoveryNeeded(
        code,
        what,
        where=Where(job=job, path=path),
        safe="Safe: nothing was left half-written; what is decided will be finished.",
        next=cure + GOES_ON.get(code, ", then start the job again."),
    )
