"""`python -m fencepost_proof.walk`: the modules that one start, one epoch and one recovery into PostgreSQL go through.

    modules   of fencepost in which a function was called
    changes   how often a call went into another module than the call before it

The stand-in engine carries real epochs with the real protocol, ledger and sink, in one thread. With `--spark` a job is
started on a real session too: the checks before a start are not in the stand-in's way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import fencepost
from fencepost import faults
from fencepost.connectors.postgres.sink import Postgres as Sink
from fencepost.errors import FencepostError
from fencepost.runtime.driver import Driver
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.stand_in import StandIn

PACKAGE = Path(fencepost.__file__).parent


@dataclass
class Walk:
    """The calls within the package, one after the other."""

    name: str
    calls: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    _last: str = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """For `sys.setprofile`."""
        if event == "call" and (file := Path(frame.f_code.co_filename)).is_relative_to(PACKAGE):
            module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
            self.calls[module] += 1
            self.changes += module != self._last
            self._last = module

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Look at whatever is done here."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def walk(dsn: str, folder: Path) -> list[Walk]:
    """A first start, the second epoch (the first prepares statements), and the recovery of a decided third."""
    start, epoch, recovery = Walk("one start"), Walk("one epoch"), Walk("one recovery")

    def job(upto: int) -> StandIn:
        sink = Sink("walked", dsn=dsn)
        return StandIn(folder / "checkpoint", tuple(range(upto)), per_epoch=10, sinks={sink.name: sink})

    with _every(Driver, "recover", iter([start])), _every(Driver, "run_epoch", iter([None, epoch])):
        job(20).run()
    faults.arm({faults.ARM: "decide.after=fail"})
    try:
        job(30).run()
    except FencepostError:
        pass
    else:
        raise AssertionError("the third epoch was to fail after its decision")
    finally:
        faults.arm({})
    with _every(Driver, "recover", iter([recovery])):
        job(30).run()
    return [start, epoch, recovery]


def walk_with_spark(dsn: str, folder: Path) -> Walk:
    """A job's first start, from `job.start()` to Spark's query."""
    (folder / "in").mkdir()
    with fencepost.Job("walk", checkpoint=folder / "spark", conf={"spark.ui.enabled": "false"}) as job:
        lines = job.read(fencepost.Files(folder / "in", format="text"))
        job.write(lines, fencepost.Postgres("walked_by_spark", dsn=dsn))
        found = Walk("one start with Spark")
        with found.taken():
            job.start()
    job.spark.stop()
    return found


@contextmanager
def _every(owner: type, method: str, walks: Iterator[Walk | None]) -> Iterator[None]:
    """Let each call of a method be the next walk."""
    real: Callable[..., Any] = getattr(owner, method)

    def walked(*given: Any) -> Any:
        if (one := next(walks, None)) is None:
            return real(*given)
        with one.taken():
            return real(*given)

    setattr(owner, method, walked)
    try:
        yield
    finally:
        setattr(owner, method, real)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m fencepost_proof.walk", description=__doc__)
    parser.add_argument("--spark", action="store_true", help="also a start on a real session")
    parser.add_argument("--modules", action="store_true", help="also the modules, and the calls into each")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, Postgres(Path(name) / "postgres") as server:
        walks = walk(server.dsn, Path(name))
        walks += [walk_with_spark(server.dsn, Path(name))] if options.spark else []
    print(f"{'into PostgreSQL':22}{'modules':>9}{'changes':>9}{'calls':>9}")
    for one in walks:
        print(f"{one.name:22}{len(one.calls):>9}{one.changes:>9}{one.calls.total():>9}")
        if options.modules:
            for module, calls in one.calls.most_common():
                print(f"    {module:40}{calls:>6}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
