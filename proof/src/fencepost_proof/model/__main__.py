"""`python -m fencepost_proof.model`: every history of the protocol with a few faults, then every sabotage."""

from __future__ import annotations

import argparse
import sys
import time

from fencepost_proof.model import report
from fencepost_proof.model.sabotage import SABOTAGES

COLUMNS = ("lost", "duplicated", "torn", "early", "stuck")


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was violated and every sabotage was caught, else 1."""
    parser = argparse.ArgumentParser(prog="python -m fencepost_proof.model", description=__doc__)
    parser.add_argument("--faults", type=int, default=3, help="at most so many per history (3)")
    parser.add_argument("--processes", type=int, default=2, help="2")
    parser.add_argument("--limit", type=int, default=None, help="only the first so many jobs of the plan")
    parser.add_argument("--quick", action="store_true", help="what the tests explore")
    options = parser.parse_args(arguments)
    plan = (report.quick() if options.quick else report.tasks(options.faults))[: options.limit]

    print(f"{len(plan)} jobs, all histories, in {options.processes} processes; then {len(SABOTAGES)} sabotages.")
    for task in plan:
        print(f"  {task.name}")
    print()
    began = time.perf_counter()
    good = _explore(plan, options.processes)
    good &= _hunt(options.processes)
    print(f"\n{'Nothing violated.' if good else 'VIOLATED.'} {time.perf_counter() - began:.0f} s in all.")
    return 0 if good else 1


def _explore(plan: tuple[report.Task, ...], processes: int) -> bool:
    width = max((len(task.name) for task in plan), default=0)
    heads = "".join(f"{name:>11}" for name in COLUMNS)
    print(f"{'job':{width}}{'histories':>12}{heads}{'effects':>11}{'core s':>8}{'per core s':>12}")
    good = True
    histories = 0
    for verdict in report.explore(plan, processes):
        counts = "".join(f"{verdict.kinds.get(name, 0):>11}" for name in COLUMNS)
        speed = verdict.histories / verdict.seconds
        print(
            f"{verdict.name:{width}}{verdict.histories:>12,}{counts}{verdict.effects:>11,}"
            f"{verdict.seconds:>8.1f}{speed:>12,.0f}",
            flush=True,
        )
        for example in verdict.examples:
            print(f"    {example}")
        histories += verdict.histories
        good &= not verdict.kinds
    print(f"{histories:,} histories. Equal situations are explored once and counted on every path to them.\n")
    return good


def _hunt(processes: int) -> bool:
    width = max(len(sabotage.name) for sabotage in SABOTAGES)
    good = True
    for name, what, caught in report.hunt_all(processes):
        good &= caught is not None
        if caught is None:
            print(f"{name:{width}}  NOT CAUGHT  {what}")
        else:
            by = caught.by.splitlines()[0]
            print(f"{name:{width}}  {caught.ends:>5} ends  {'; '.join(caught.faults) or 'no fault'} → {by}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
