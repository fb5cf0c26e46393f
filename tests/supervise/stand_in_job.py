"""A job without Spark for tests of the supervisor: it does what the next line of the script beside it says.

python stand_in_job.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import fencepost as fp
from fencepost.errors import EpochFailed, Fenced, OperatorNeeded, Refused
from fencepost.observe.pulse import PULSE, this_driver
from fencepost.supervise.link import telling_the_end, when_told_to

FOLDER = Path(sys.argv[1])
ERRORS = {"fenced": Fenced, "operator": OperatorNeeded, "refused": Refused, "jvm": EpochFailed}


def say(text: str) -> None:
    """One write a line: several processes may do so."""
    with (FOLDER / "said").open("a") as file:
        file.write(text + "\n")


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
failures, strategy, tell = when_told_to("stand-in", str(checkpoint), own, partial(say, "warmed"))
act = next_act()
say(f"{act} {len(failures)} {strategy.word if strategy else None}")
PULSE.add(str(checkpoint), lambda: this_driver("stand-in", 1, 1))
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
    case "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    case "fork":  # a child of its own holds the line to the supervisor
        if os.fork() == 0:
            os.setsid()
            time.sleep(5)
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
    case "exit":
        sys.exit(7)
    case "end":
        pass
    case other:
        raise ERRORS[other]("jvm_lost" if other == "jvm" else other, "So it is.", next="Do this.")
