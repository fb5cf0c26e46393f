"""Attacks that no crash point inside the driver can make: from outside, on a task, on a server, by sleep.

Each starts the job once, at least, and says whether it hit. A job that fails in any way but the allowed ones is a
`SceneFailed`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from fencepost_proof.kill.scene import KILLED, Scene, SceneFailed, end_group, is_stopped, until
from fencepost_proof.workloads.contract import ROWS_PER_EPOCH
from fencepost_proof.workloads.process import AGAIN, FENCED, REFUSED

WORKER_DIED = "Python worker exited unexpectedly"


@dataclass(frozen=True)
class Blow:
    """What an attack did."""

    how: str
    hit: bool


def in_a_task(scene: Scene, chance: random.Random) -> Blow:
    """A task kills the driver when it comes to a row of the next epoch."""
    row = chance.choice(scene.workload.unread()[:ROWS_PER_EPOCH])
    ended = scene.run("", None, "--kill-at-id", str(row))
    return Blow(f"in a task, at row {row}", allowed(scene, ended, 0, KILLED) == KILLED)


def at_the_state(scene: Scene, tries: int) -> Blow:
    """A Python worker behind a state store dies, after its task has committed the store. If Spark may try the task
    again, another attempt commits the same version of the state; if not, the driver lives to see it and ends the query.
    """
    died = scene.folder / "worker-died"
    died.unlink(missing_ok=True)
    ended = allowed(scene, scene.run("", None, "--worker", f"dies:{tries}"), 0 if tries > 1 else AGAIN)
    if died.exists() and WORKER_DIED not in scene.said():
        raise SceneFailed(f"The job did not see its worker's death; see {scene.log}")
    how = "went on with the next attempt" if ended == 0 else "asked for a start"
    return Blow(f"a worker behind the state, {tries} tries: the job {how}", died.exists())


def jvm_dies(scene: Scene, where: str) -> Blow:
    """SIGKILL to the JVM alone, while the driver stands at `point@visit`; the driver lives to see it."""
    job = scene.start(asleep(where))
    try:
        until(job, lambda: is_stopped(job), f"{where} was reached")
        os.kill(jvm_of(job), signal.SIGKILL)
        os.kill(job.pid, signal.SIGCONT)
        allowed(scene, scene.wait(job), AGAIN)
    finally:
        end_group(job)
    return Blow(f"the JVM while the driver was at {where}", hit=True)


def jvm_of(job: subprocess.Popen[bytes]) -> int:
    """The JVM that a driver started."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, name, rest = entry.read_text().replace(")", "(").split("(")
        except (OSError, ValueError):  # it ended, or has a strange name
            continue
        if name == "java" and int(rest.split()[1]) == job.pid:
            return int(entry.parent.name)
    raise SceneFailed("The driver has no JVM.")


def in_a_worker(scene: Scene, fault: str) -> Blow:
    """A Python worker dies; the driver lives to see it, and ends the query."""
    died = allowed(scene, scene.run(fault), 0, AGAIN) == AGAIN
    if died and WORKER_DIED not in scene.said():
        raise SceneFailed(f"{fault}: the job failed, but not by its worker's death; see {scene.log}")
    return Blow(fault, died)


def at_random(scene: Scene, chance: random.Random, seconds: float) -> Blow:
    """SIGKILL from outside, to the driver and its JVM at once."""
    job = scene.start()
    moment = wait_within(job, chance.uniform(0.3, seconds))
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    ended = allowed(scene, scene.wait(job), 0, KILLED)
    return Blow(f"after {moment:.2f} s", ended == KILLED)


def server_dies(scene: Scene, name: str, when: str | float, away: float) -> Blow:
    """SIGKILL to a server while the job runs: after so many seconds, or while the driver stands at `point@visit`. The
    server comes back. The job may go through, or ask to be started again.
    """
    server = scene.workload.servers[name]
    job = scene.start(asleep(when) if isinstance(when, str) else "")
    try:
        if isinstance(when, str):
            until(job, lambda: is_stopped(job), f"{when} was reached")
            how = f"while the driver was at {when}"
        else:
            how = f"after {wait_within(job, when):.2f} s"
        hit = job.poll() is None
        server.kill()
        if isinstance(when, str):
            os.kill(job.pid, signal.SIGCONT)
        time.sleep(away)
        server.start()
        ended = allowed(scene, scene.wait(job), 0, AGAIN)
    finally:
        end_group(job)
    return Blow(f"{name} {how}, for {away:.1f} s: the job {'went on' if ended == 0 else 'asked for a start'}", hit)


def sleeps_past_a_takeover(scene: Scene, where: str, *, late: bool) -> Blow:
    """SIGSTOP at `point@visit`; a second driver takes over; SIGCONT while it recovers or, if `late`, when it has ended.

    The first must be fenced, and the ledger must show nothing of it after the takeover.
    """
    sleeper = scene.start(asleep(where))
    second = None
    try:
        until(sleeper, lambda: is_stopped(sleeper), f"{where} was reached")
        os.killpg(sleeper.pid, signal.SIGSTOP)  # its JVM, too
        old = scene.writers()
        second = scene.start()
        until(second, lambda: scene.writers() != old, "it took over")
        if late:
            scene.wait(second)
        os.killpg(sleeper.pid, signal.SIGCONT)
        ended = scene.wait(sleeper), scene.wait(second)
    finally:
        end_group(sleeper)
        if second is not None:
            end_group(second)
    if ended != (FENCED, 0):
        raise SceneFailed(f"asleep at {where}, late {late}: the drivers ended with {ended}; see {scene.log}")
    check_fenced(scene)
    return Blow(f"asleep at {where}, woken when the second {'had ended' if late else 'took over'}", hit=True)


def keeps_others_out(scene: Scene, where: str) -> Blow:
    """SIGSTOP at `point@visit`, and a second driver: where state files carry no attempt's id, it must not start. The
    first goes on when it wakes.
    """
    sleeper = scene.start(asleep(where))
    try:
        until(sleeper, lambda: is_stopped(sleeper), f"{where} was reached")
        os.killpg(sleeper.pid, signal.SIGSTOP)  # its JVM, too
        old = scene.writers()
        refused = scene.run()
        new = scene.writers()
        said = scene.said()
        os.killpg(sleeper.pid, signal.SIGCONT)
        ended = refused, scene.wait(sleeper)
    finally:
        end_group(sleeper)
    if ended != (REFUSED, 0) or old != new or "driver_alive" not in said:
        raise SceneFailed(f"asleep at {where}: the drivers ended with {ended}; see {scene.log}")
    return Blow(f"asleep at {where}; the second driver was refused", hit=True)


def asleep(where: str) -> str:
    """The fault for `point@visit`."""
    return "=stop@".join(where.split("@"))


def check_fenced(scene: Scene) -> None:
    """After the newest takeover every record is the new driver's."""
    taken = scene.writers()[-1]
    strange = [record["number"] for record in scene.records() if record["number"] > taken != record["writer"]]
    if strange:
        raise SceneFailed(f"Records {strange} were written by a driver that was replaced in {taken}.")


def wait_within(job: subprocess.Popen[bytes], seconds: float) -> float:
    """Let a job run for so long, or until it ends."""
    deadline = time.monotonic() + seconds
    while job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return seconds


def allowed(scene: Scene, ended: int, *codes: int) -> int:
    """An exit code that the attack explains."""
    if ended not in codes:
        raise SceneFailed(f"exit code {ended}, not one of {codes}; see {scene.log}")
    return ended
