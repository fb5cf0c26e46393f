"""Kills a real Spark job N times, at every crash point and at random moments, and counts what its sinks hold.

    python -m fencepost_proof.kill 50 [--workload kafka] [--seed 7] [--bridge foreach_batch] [--folder evidence]
    python -m fencepost_proof.kill 50 --workload state [--backend filesystem] [--plan append]
    python -m fencepost_proof.kill 50 --workload kafka --overlap     each epoch is committed beside the next one's tasks

One checkpoint lives through all of it: a kill, a restart with the next fault armed, and so on, while input keeps
arriving; so a kill costs one process start. A scout runs first and notes which points this job passes. Exit 1 if a row
is lost, duplicated or wrong, if an armed point was never hit, or if the code has a point that nobody can account for.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fencepost_proof.kill.killer import Killer
from fencepost_proof.kill.report import concluded, new_console, report, watch_report
from fencepost_proof.kill.scene import Scene, class_archive
from fencepost_proof.kill.scouting import scout
from fencepost_proof.rig.databases import Servers
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.workloads.contract import (
    Workload,
)
from fencepost_proof.workloads.databases import DatabasesWorkload
from fencepost_proof.workloads.files import FilesWorkload
from fencepost_proof.workloads.kafka import KafkaWorkload
from fencepost_proof.workloads.lakehouse import LakehouseWorkload, LakeServers
from fencepost_proof.workloads.state import BACKENDS, PLANS, StateWorkload

Make = Callable[[Path], Workload]


@contextmanager
def workload(chosen: argparse.Namespace, folder: Path, chance: random.Random) -> Iterator[tuple[Make, Make]]:
    """Ways to make this workload in a folder: one for rehearsals, and one whose rows are by chance."""
    if chosen.workload == "files":
        yield FilesWorkload, partial(FilesWorkload, chance=chance)
        return
    if chosen.workload == "state":
        stateful = partial(StateWorkload, backend=chosen.backend, plan=chosen.plan)
        yield stateful, partial(stateful, chance=chance)
        return
    if chosen.workload == "databases":
        with Servers.started(folder) as servers:
            made = partial(DatabasesWorkload, servers_=servers)
            yield made, partial(made, chance=chance)
        return
    if chosen.workload == "lakehouse":
        with LakeServers.started(folder) as lake:
            kept = partial(LakehouseWorkload, servers_=lake)
            yield kept, partial(kept, chance=chance)
        return
    with Broker(folder / "kafka") as broker:
        yield partial(KafkaWorkload, broker=broker), partial(KafkaWorkload, broker=broker, chance=chance)


def run_failing(fails: int, seed: int, plan: str, folder: Path) -> bool:
    """State in memory ends with its process, so there the query fails and the process lives on."""
    module = "fencepost_proof.workloads.state_failing"
    told = [str(folder), "--fails", str(fails), "--seed", str(seed), "--plan", plan, "--backend", "memory"]
    return subprocess.run([sys.executable, "-m", module, *told], check=False).returncode == 0


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill a real Spark job again and again, and count its output.")
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--workload", choices=["files", "kafka", "databases", "lakehouse", "state"], default="files")
    parser.add_argument("--backend", choices=BACKENDS, default="rocksdb", help="of the workload state")
    parser.add_argument("--plan", choices=PLANS, default="update", help="of the workload state")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--bridge", choices=["jvm", "foreach_batch"], default="jvm")
    parser.add_argument("--overlap", action="store_true", help="with Checkpoint(overlap=True)")
    parser.add_argument("--folder", type=Path, help="a new folder for the evidence; by default one is made")
    chosen = parser.parse_args(arguments)
    if chosen.overlap and chosen.backend == "memory":
        parser.error("--overlap is for jobs that are killed, and state in memory ends with its process")
    console = new_console()
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="fencepost-kill-"))
    what = f"{chosen.workload} {chosen.backend} {chosen.plan}" if chosen.workload == "state" else chosen.workload
    about = f"seed {seed}, workload {what}, bridge {chosen.bridge}{', overlap' if chosen.overlap else ''}"
    console.print(f"{about}; everything is in {folder}", highlight=False)
    folder.mkdir(parents=True, exist_ok=True)

    def attack() -> bool:
        if chosen.workload == "state" and chosen.backend == "memory":
            return run_failing(chosen.kills, seed, chosen.plan, folder)
        chance, began = random.Random(seed), time.monotonic()
        with workload(chosen, folder, chance) as (rehearsed, made):
            archive = class_archive(folder, chosen.workload, rehearsed, chosen.bridge)
            started = partial(Scene, bridge=chosen.bridge, archive=archive, overlap=chosen.overlap)
            scouted = scout(started(rehearsed(folder / "scout")))
            killer = Killer(started(made(folder / "scene")), scouted, chance, console)
            with killer.scene.workload.watched() as seen:
                killer.run(chosen.kills)
            right = report(console, killer, scouted, time.monotonic() - began)
            return watch_report(console, seen) and right

    return concluded(attack, folder, console, keep=chosen.folder is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
