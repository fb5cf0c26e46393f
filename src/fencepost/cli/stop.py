"""`fencepost stop` and `fencepost cancel`: ask a job to end, and wait until it has.

Never ends a process itself: a wish is left in the checkpoint (observe/requests.py), which also works from another
machine, and the driver heeds it between two steps.
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import replace
from typing import Final

import click

from fencepost.cli.exits import Exit
from fencepost.cli.find import JOB, told
from fencepost.cli.status_view import WORDS, print_one
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Where
from fencepost.ledger import Place, RemotePath
from fencepost.observe import pulse, requests
from fencepost.observe.health import Health, look
from fencepost.observe.requests import Wish
from fencepost.times import seconds

TICK_S: Final = 0.2
FAR_TICK_S: Final = 2.0
"""On a remote store each look costs requests, and its driver looks for wishes every five seconds."""
SURE_S: Final = 3.0
"""A failure is followed by a restart sooner than this, if by any."""
ENDED: Final = {"stop": "stopped", "cancel": "cancelled"}
GONE: Final = ("stopped", "failed", "dead")

_job = click.argument("checkpoint", metavar="JOB", type=JOB)
_timeout = click.option("--timeout", default="60s", show_default=True, help="Wait so long for it to end.")


@click.command()
@_job
@_timeout
def stop(checkpoint: Place, timeout: str) -> None:
    """Let a running job finish its epoch, then stop it.

    JOB is its file, its name or its checkpoint. Its supervisor ends with it. The next start goes on after the
    last epoch. Exit code 1: there was nothing to stop, or it did not stop in time.
    """
    with told(checkpoint):
        sys.exit(_end(checkpoint.absolute(), "stop", timeout))


@click.command()
@_job
@_timeout
def cancel(checkpoint: Place, timeout: str) -> None:
    """Stop a running job at once.

    An epoch whose tasks still run is dropped; the next start runs it again. The checkpoint stays, unless the job has
    fp.Checkpoint(retain="delete_on_cancellation"): then it is deleted. Exit code 1: there was nothing to cancel, or it
    did not end in time.
    """
    with told(checkpoint):
        sys.exit(_end(checkpoint.absolute(), "cancel", timeout))


def _end(root: Place, wish: Wish, timeout: str) -> Exit:
    limit = seconds(timeout)
    if limit is None:
        raise BadConfig("bad_timeout", f"--timeout {timeout} is no time.", safe=UNCHANGED, next="Write it as 60s.")
    before = look(root)
    if before.condition in GONE:
        _say(f"There is nothing to {wish}: job {before.job} does not run.")
        print_one(before)
        return Exit.FAILED
    _leave(root, wish, before)
    after = _wait(root, wish, before, time.monotonic() + limit)
    if after is None:
        click.echo(f"Job {before.job} is {ENDED[wish]}, and its checkpoint is deleted.")
        return Exit.FINE
    if after.condition == "stopped":
        done = "no epoch was completed" if after.epoch is None else f"epoch {after.epoch} is complete"
        click.echo(f"Job {after.job} is {ENDED[wish]}: {done}; the checkpoint stays.")
        return Exit.FINE
    if after.condition in GONE:
        _say(f"Job {after.job} ended, but not in order.")
    else:
        what = f"Process {after.pid} on {after.host}" if after.pid else "It"
        _say(f"{what} did not {wish} within {timeout}, and is {WORDS.get(after.condition, after.condition)}.")
        _say(
            "The wish stays: it ends as soon as it can. What is decided survives even a kill -9; its supervisor, if it "
            "has one, has to be ended first."
        )
    print_one(after)
    return Exit.FAILED


def _leave(root: Place, wish: Wish, health: Health) -> None:
    if health.writer is None:
        return  # it has no number yet; asked again when it has
    try:
        requests.leave(root, wish, health.writer)
    except OSError as error:
        if not root.exists():
            return
        raise BadConfig(
            "wish_not_left",
            f"The checkpoint cannot be written, so nobody can be asked: {error.strerror}.",
            where=Where(job=health.job, path=str(root)),
            safe=UNCHANGED,
            next=f"Ask as a user who may write there, or send SIGTERM to process {health.pid} on {health.host}.",
        ) from error
    there = health.pid is not None and health.condition != "waiting"
    who = f"process {health.pid} on {health.host}" if there else "whoever would start it again"
    _say(f"asked {who} (writer {health.writer}) to {wish}")


def _wait(root: Place, wish: Wish, before: Health, until: float) -> Health | None:
    """How the job is in the end; None if its checkpoint is gone."""
    now, asked, over_since = before, before.writer, None
    while time.monotonic() < until:
        time.sleep(FAR_TICK_S if isinstance(root, RemotePath) else TICK_S)
        try:
            now = look(root)
        except CheckpointRefused:
            if root.exists():
                raise
            return None
        if now.condition == "stopped" or _left_without_a_word(root, before, now):
            _wait_for_supervisor(before, until)
            requests.take_back(root, asked or 0)  # asked twice, perhaps
            return replace(now, condition="stopped")
        if now.condition in GONE:
            over_since = over_since or time.monotonic()
            if time.monotonic() - over_since > SURE_S:
                return now
            continue
        over_since = None
        if now.writer != asked or (now.condition == "running" and requests.find(root, now.writer or 0) is None):
            asked = now.writer  # another driver took over meanwhile, or the wish was swept away by a start
            _leave(root, wish, now)
    return now


def _left_without_a_word(root: Place, before: Health, now: Health) -> bool:
    """Without a journal: a driver that ends in order takes its pulse and the wish away."""
    gone = before.condition == "running" and now.condition == "unknown" and not pulse.beats(root)
    return gone and requests.find(root, now.writer or 0) is None


def _wait_for_supervisor(before: Health, until: float) -> None:
    """It ends a moment after its driver; whoever starts the job next then has the machine to himself."""
    while before.supervisor is not None and before.host == socket.gethostname() and pulse.exists(before.supervisor):
        if time.monotonic() > until:
            return
        time.sleep(TICK_S / 2)


def _say(text: str) -> None:
    click.echo(text, err=True)
