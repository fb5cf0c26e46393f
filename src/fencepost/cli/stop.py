"""`fencepost stop` and `fencepost cancel`: ask a job to end, and wait until it has.

Never ends a process itself: it leaves a request in the checkpoint (observe/commands.py), which also works from another
machine, and the driver acts on it between two steps.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import click

from fencepost.admin import savepoint as savepoints
from fencepost.cli.frame import progress
from fencepost.cli.lookup import JOB, told
from fencepost.cli.status import print_one
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Exit, Where, seconds
from fencepost.observe import commands, heartbeat, journal
from fencepost.observe.commands import Wish
from fencepost.observe.events import DELETING, Kind
from fencepost.observe.health import Health, look
from fencepost.observe.wording import WORDS
from fencepost.store import Place, RemotePath

TICK_S: Final = 0.2
FAR_TICK_S: Final = 2.0
"""On a remote store each look costs requests, and the driver checks for a request every five seconds."""
SURE_S: Final = 3.0
"""If a failure is followed by a restart, then sooner than this."""
ENDED: Final = {"stop": "stopped", "cancel": "cancelled"}
GONE: Final = ("stopped", "failed", "dead")


@dataclass(frozen=True, slots=True)
class Voice:
    """Where it is said what happens: on a terminal, or on a page of `fencepost ui`."""

    say: Callable[[str], object]
    """What is being done."""
    answer: Callable[[str], object]
    """What came of it."""
    show: Callable[[Health], object]


_job = click.argument("checkpoint", metavar="JOB", type=JOB)
_timeout = click.option("--timeout", default="60s", show_default=True, help="How long to wait for it to end.")


@click.command()
@_job
@_timeout
@click.option("--savepoint", "saved", is_flag=True, help="Then make a savepoint of its last epoch, as fencepost "
              "savepoint create does; its folder is the last line.")  # fmt: skip
def stop(checkpoint: Place, timeout: str, saved: bool) -> None:
    """Let a running job finish its epoch, then stop it.

    JOB is its file, its name or its checkpoint. Its supervisor ends with it. The next start continues after the
    last epoch. Exit code 1: there was nothing to stop, or it did not stop in time; then no savepoint is made.
    """
    with told(checkpoint):
        code = end(checkpoint.absolute(), "stop", timeout)
        if saved and code is Exit.FINE:
            with progress() as tell:
                made = savepoints.create(checkpoint, tell=tell)
            click.echo(made.path)
        elif saved:
            _say(f"No savepoint was made. To make one anyway: fencepost savepoint create {checkpoint}")
        sys.exit(code)


@click.command()
@_job
@_timeout
def cancel(checkpoint: Place, timeout: str) -> None:
    """Stop a running job at once.

    An epoch whose tasks are still running is dropped; the next start reruns it. The checkpoint stays, unless the job
    has fp.Checkpoint(on_cancel="delete"): then it is deleted. Exit code 1: there was nothing to cancel, or it did not
    end in time.
    """
    with told(checkpoint):
        sys.exit(end(checkpoint.absolute(), "cancel", timeout))


def end(root: Place, wish: Wish, timeout: str, voice: Voice | None = None) -> Exit:
    """Ask for it, wait, and say what came of it; by default on the terminal."""
    voice = voice or Voice(_say, click.echo, print_one)
    limit = seconds(timeout)
    if limit is None:
        raise BadConfig("bad_timeout", f"Invalid --timeout {timeout}.", safe=UNCHANGED, next="Write it as 60s.")
    before = look(root)
    if before.condition in GONE:
        voice.say(f"There is nothing to {wish}: job {before.job} is not running.")
        voice.show(before)
        return Exit.FAILED
    _leave(root, wish, before, voice)
    after = _wait(root, wish, before, time.monotonic() + limit, voice)
    if after is None:
        voice.answer(f"Job {before.job} is {ENDED[wish]}, and its checkpoint is deleted.")
        return Exit.FINE
    if after.condition == "stopped":
        done = "no epoch was completed" if after.epoch is None else f"epoch {after.epoch} is complete"
        voice.answer(f"Job {after.job} is {ENDED[wish]}: {done}; the checkpoint stays.")
        return Exit.FINE
    if after.condition in GONE:
        voice.say(f"Job {after.job} ended, but not cleanly.")
    else:
        what = f"Process {after.pid} on {after.host}" if after.pid else "It"
        voice.say(f"{what} did not {wish} within {timeout}, and is {WORDS.get(after.condition, after.condition)}.")
        voice.say(
            "The request stands: the job ends as soon as it can. Decided epochs survive even a kill -9; if the job has "
            "a supervisor, end that first."
        )
    voice.show(after)
    return Exit.FAILED


def _leave(root: Place, wish: Wish, health: Health, voice: Voice) -> None:
    if health.writer is None:
        return  # it has no number yet; asked again when it has
    try:
        commands.leave(root, wish, health.writer)
    except OSError as error:
        if not root.exists():
            return
        raise BadConfig(
            "wish_not_left",
            f"Cannot leave a request in the checkpoint: {error.strerror}.",
            where=Where(job=health.job, path=str(root)),
            safe=UNCHANGED,
            next=f"Run this as a user who may write there, or send SIGTERM to process {health.pid} on {health.host}.",
        ) from error
    there = health.pid is not None and health.condition != "waiting"
    who = f"process {health.pid} on {health.host}" if there else "the process that would restart it"
    voice.say(f"asked {who} (writer {health.writer}) to {wish}")


def _wait(root: Place, wish: Wish, before: Health, until: float, voice: Voice) -> Health | None:
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
        if now.condition == "stopped" and _is_deleting(root):
            continue
        if now.condition == "stopped" or _left_without_a_word(root, before, now):
            if not root.exists():  # it went while we looked
                return None
            _wait_for_supervisor(before, until)
            commands.take_back(root, asked or 0)  # asked twice, perhaps
            return replace(now, condition="stopped")
        if now.condition in GONE:
            over_since = over_since or time.monotonic()
            if time.monotonic() - over_since > SURE_S:
                return now
            continue
        over_since = None
        if now.writer != asked or (now.condition == "running" and commands.find(root, now.writer or 0) is None):
            asked = now.writer  # another driver took over in the meantime, or a start swept the request away
            _leave(root, wish, now, voice)
    return now


def _is_deleting(root: Place) -> bool:
    """Did the job say that its checkpoint is about to go?"""
    said = [event.what for event in journal.read(root) if event.kind is Kind.STOPPED]
    return said[-1:] == [DELETING]


def _left_without_a_word(root: Place, before: Health, now: Health) -> bool:
    """Without a journal: a driver that ends cleanly removes its heartbeat and the request."""
    gone = before.condition == "running" and now.condition == "unknown" and not heartbeat.beats(root)
    return gone and commands.find(root, now.writer or 0) is None


def _wait_for_supervisor(before: Health, until: float) -> None:
    """It ends a moment after its driver; the next start should not meet it."""
    while before.supervisor is not None and before.host == socket.gethostname() and heartbeat.exists(before.supervisor):
        if time.monotonic() > until:
            return
        time.sleep(TICK_S / 2)


def _say(text: str) -> None:
    click.echo(text, err=True)
