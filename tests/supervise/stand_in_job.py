"""A job without Spark for tests of the supervisor: it does what the next line of the script beside it says.

python stand_in_job.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from fencepost_proof.stand_in import StandIn

import fencepost as fp
from fencepost.errors import EpochFailed, Fenced, OperatorNeeded, Refused, now
from fencepost.observe.heartbeat import PULSE, this_driver
from fencepost.protocol.recovery import take_over
from fencepost.runtime.driver import this_process
from fencepost.runtime.performer import Performer
from fencepost.store.ledger import read
from fencepost.store.local import LocalStore
from fencepost.store.spark_log import SparkLog
from fencepost.supervise.link import link, telling_the_end, when_told_to

FOLDER = Path(sys.argv[1])
ERRORS = {"fenced": Fenced, "operator": OperatorNeeded, "refused": Refused, "jvm": EpochFailed}


def say(text: str) -> None:
    """One write a line: several processes may do so."""
    with (FOLDER / "said").open("a") as file:
        file.write(text + "\n")


def send(_: object, batches: Iterable[pa.RecordBatch]) -> None:
    """Say each row once it is sent; after the first, only when we are let go on."""
    for row in [row for batch in batches for row in batch.to_pylist()]:
        while row["id"] > 0 and not (FOLDER / "go on").exists():
            time.sleep(0.02)
        say(f"sent {row['id']} by {os.getpid()}")


def next_act() -> str:
    """Take the first line of the script."""
    first, *rest = (FOLDER / "script").read_text().split()
    (FOLDER / "script").write_text(" ".join(rest))
    return first


if "crash" in sys.argv:
    raise ValueError("before the job")
checkpoint = FOLDER / "ck"
(checkpoint / "fencepost").mkdir(parents=True, exist_ok=True)
own = fp.FixedDelay(attempts=4, delay="0 s")
if (supervisor := link()) is not None and supervisor.role == "standby" and "lingers in its file" in sys.argv:
    say(f"lingers {os.getpid()}")
    supervisor.called.wait()


def warm_up(called: threading.Event) -> None:
    """To the end, or in vain for a server that does not answer."""
    if "lingers in its warm-up" in sys.argv:
        say(f"lingers {os.getpid()}")
        threading.Event().wait()
    say("warmed")


failures, strategy, tell = when_told_to("stand-in", str(checkpoint), own, warm_up)
act = next_act()
say(f"{act} {len(failures)} {strategy.word if strategy else None}")
done = 1
if act == "epoch":
    done = None
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").touch()
PULSE.add(str(checkpoint), lambda: this_driver("stand-in", 1, done))
match act:
    case "die":
        os.kill(os.getpid(), signal.SIGKILL)
    case "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    case "fail":
        tell(EpochFailed("spark_failed", "It failed.", next="Again."))
        os.kill(os.getpid(), signal.SIGKILL)
    case "serve":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        time.sleep(60)
    case "epoch":  # in it for some looks of the supervisor, and idle after it
        time.sleep(1)
        (checkpoint / "commits").mkdir()
        (checkpoint / "commits" / "0").touch()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        time.sleep(60)
    case "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    case "fork":  # a child of its own holds the line to the supervisor
        if os.fork() == 0:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for taken in (0, 1, 2):  # the supervisor's own, whose end the test waits for
                os.dup2(nowhere, taken)
            time.sleep(90)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    case "caught":
        with suppress(Fenced), telling_the_end():
            raise Fenced("fenced", "So it is.", next="Do this.")
        sys.exit(1)
    case "over":
        with telling_the_end():
            pass
        sys.exit(3)
    case "take":  # the checkpoint, by the real protocol
        if "sleepwalk" in sys.argv:
            PULSE.check_supervised = lambda job: None  # type: ignore[method-assign]
        with telling_the_end():
            StandIn(checkpoint, (1, 2, 3), 1, {"out": fp.WriteAheadLog(send, name="out", idempotent=True)}).run()
    case "replaced":  # by another process; this one ends as a file does that got Spark's error from job.start()
        StandIn(checkpoint, (1,), 1, {"out": fp.WriteAheadLog(send, name="out", idempotent=True)}).run()
        if (other := os.fork()) == 0:
            store = LocalStore(checkpoint)
            Performer("", store, SparkLog(store), {}).run(take_over("job", this_process(), read(checkpoint), now))
            os._exit(0)
        os.waitpid(other, 0)
        say(f"by {other}")
        sys.exit(1)
    case "exit":
        sys.exit(7)
    case "end":
        pass
    case other:
        raise ERRORS[other]("jvm_lost" if other == "jvm" else other, "So it is.", next="Do this.")
