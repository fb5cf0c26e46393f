"""The driver process under a supervisor: runs the user's file as python would, and says how it ended.

python -m fencepost.supervise.child FILE [ARGUMENT…]
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

from fencepost.cli.exits import code_of
from fencepost.errors import FencepostError
from fencepost.observe import logs
from fencepost.observe.pulse import PULSE
from fencepost.supervise.link import link


def main(arguments: list[str]) -> int:
    """Run the file; the exit code says what follows, the link says why."""
    supervisor = link()
    assert supervisor is not None, "only a supervisor starts this"
    logs.follow_environment()
    PULSE.supervisor = os.getppid()
    PULSE.begin(supervisor.beat)
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).absolute().parent)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except FencepostError as error:
        supervisor.tell_error("ended", error)
        return code_of(error)
    except KeyboardInterrupt:
        return 130
    except SystemExit:
        raise
    except Exception:  # noqa: BLE001 - the user's own, with all that it has to say
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
