"""The driver process under a supervisor: runs the user's file as python would, and reports how it ended.

python -m fencepost.supervise.child FILE [ARGUMENT…]
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from fencepost.errors import Exit, FencepostError, code_of
from fencepost.observe import journal
from fencepost.observe.heartbeat import PULSE
from fencepost.supervise.link import link


def main(arguments: list[str]) -> int:
    """Run the file; the exit code tells the supervisor what to do next, the link tells it why."""
    supervisor = link()
    assert supervisor is not None, "only a supervisor starts this"
    journal.follow_environment()
    PULSE.begin(supervisor)
    supervisor.listen()
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).absolute().parent)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except FencepostError as error:
        supervisor.tell_error("ended", error)
        if supervisor.is_gone():  # otherwise the supervisor prints it
            sys.stderr.write(f"{error}\n")
        return code_of(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit:
        raise
    except Exception:  # noqa: BLE001 - the user's own error, printed in full
        traceback.print_exc()
        return Exit.FAILED
    return Exit.FINE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
