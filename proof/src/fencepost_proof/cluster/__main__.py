"""Kills every part of a cluster under a supervised job, and counts what its sinks hold:

    python -m fencepost_proof.cluster 40 [--store hdfs] [--job kafka] [--seed 7] [--folder evidence] [--plain | --heap]

For each store and each job one checkpoint lives through a chain of kills while input keeps arriving; `40` kills are
shared by the jobs of a store. Two workers on hosts of their own run the tasks, with speculation on. After each blow the
job must get on: an epoch that had not begun before must be done. Exit 1 if a row is lost, duplicated or wrong, if a
reader saw half an epoch, or if the job did not get on. `--plain` runs the sabotaged twin, and exits 1 if it is not
caught.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fencepost_proof.cluster import stores
from fencepost_proof.cluster.blows import TWIN_DIES, Nemesis
from fencepost_proof.cluster.scene import ClusterScene
from fencepost_proof.kill.report import concluded, new_console, show_rate, show_verdicts
from fencepost_proof.rig.kafka import Broker
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.standalone import Standalone

STORES, JOBS = ("hdfs", "s3"), ("kafka", "postgres")


@dataclass
class Chain:
    """What happened to one checkpoint."""

    kills: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of each kind of blow, until the job got on."""
    found: dict[str, dict[str, int]] = field(default_factory=dict)
    rows: int = 0
    epochs: int = 0
    speculated: int = 0

    @property
    def is_right(self) -> bool:
        """Nothing lost, duplicated, wrong or torn, and something was looked at."""
        return self.rows > 0 and not any(
            count for verdict in self.found.values() for what, count in verdict.items() if what != "looks"
        )


def attack(scene: ClusterScene, kinds: Iterable[str] | None, wanted: int, say: Callable[[str], None]) -> Chain:
    """One chain of so many kills, by default of all kinds, and the count at its end."""
    chain = Chain()
    nemesis = Nemesis(scene)
    with scene.watched(), scene.running():
        began = time.monotonic()
        scene.progress(-1)
        say(f"     the job runs   ({time.monotonic() - began:.0f} s)")
        for kind in kinds or nemesis.order():
            if chain.kills.total() >= wanted:
                break
            began, before = time.monotonic(), scene.newest("offsets")
            blow = nemesis.strike(kind)
            scene.progress(max(before, scene.newest("offsets")))
            took = time.monotonic() - began
            chain.kills[kind] += blow.kills
            chain.seconds[kind].append(took)
            say(f"{chain.kills.total():4} {blow.how}   ({took:.0f} s)")
        scene.finish()
        chain.epochs = scene.newest("commits") + 1
    chain.rows, chain.speculated = scene.workload.rows, scene.speculated()
    chain.found = scene.verdict()
    return chain


def report(console: Console, name: str, chain: Chain) -> None:
    """The tables of one chain."""
    table = Table(name, "kills", "seconds until the job got on")
    for kind, kills in chain.kills.items():
        table.add_row(kind, str(kills), " ".join(f"{took:.0f}" for took in chain.seconds[kind]))
    console.print(table)
    show_verdicts(console, chain.rows, chain.found)
    total = chain.kills.total()
    said = f"{total} kills, {chain.epochs} epochs, {chain.rows} rows, {chain.speculated} tasks run twice by speculation"
    console.print(said, highlight=False)
    if chain.is_right:
        show_rate(console, total)
    else:
        console.print("[red]Something is lost, duplicated, wrong or torn.[/red]")


def attack_store(store: str, folder: Path, chosen: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Chain]:
    """Every job on one store, one after the other on one cluster."""
    jobs = [chosen.job] if chosen.job else list(JOBS)
    hidden = folder / "driver"
    hidden.mkdir(parents=True)
    found = {}
    with (
        Broker(folder / "kafka") as broker,
        Postgres(folder / "postgres") as postgres,
        stores.started(store, folder) as place,
        Standalone(folder / "standalone", apart=True, hides=[hidden]) as standalone,
    ):
        for number, job in enumerate(jobs):
            chance = random.Random(f"{chosen.seed} {number}")
            share = chosen.kills // len(jobs) + (number < chosen.kills % len(jobs))
            say(f"{store}, {job}:")
            scene = ClusterScene(
                hidden / job, job, place, standalone, broker, postgres, chance, chosen.plain, chosen.heap
            )
            found[job] = attack(scene, (TWIN_DIES,) * share if chosen.plain else None, share, say)
    return found


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill every part of a cluster, and count what its job wrote.")
    parser.add_argument("kills", type=int, nargs="?", default=40, help="for each store")
    parser.add_argument("--store", choices=STORES, help="by default both, one after the other")
    parser.add_argument("--job", choices=JOBS, help="by default both, one after the other")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--folder", type=Path, help="a new folder for the evidence; by default one is made")
    parser.add_argument("--plain", action="store_true", help="the sabotaged twin: plain Spark, which must be caught")
    parser.add_argument("--heap", action="store_true", help="state on the heap instead of RocksDB")
    chosen = parser.parse_args(arguments)
    console = new_console()
    folder = (chosen.folder or Path(tempfile.mkdtemp(prefix="fencepost-kill-cluster-"))).absolute()
    console.print(f"seed {chosen.seed}; everything is in {folder}", highlight=False)
    say = partial(console.print, highlight=False)

    def attack_all() -> bool:
        right = True
        for store in [chosen.store] if chosen.store else STORES:
            began = time.monotonic()
            chains = attack_store(store, folder / store, chosen, say)
            for job, chain in chains.items():
                report(console, f"{store}, {job}", chain)
                right = chain.is_right != chosen.plain and right
            console.print(f"{store}: {time.monotonic() - began:.0f} s", highlight=False)
        return right

    return concluded(attack_all, folder, console, keep=chosen.folder is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
