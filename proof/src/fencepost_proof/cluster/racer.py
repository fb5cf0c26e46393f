"""One of two drivers that race for a checkpoint on a store: a process that lives through all races.

    python -m fencepost_proof.cluster.racer [SETTINGS.json]

With settings it has a JVM, and reaches the store through Hadoop's FileSystem; without, through the client of the store.
It reads one order a line and answers with one line of JSON. The driver, ledger and sink are the real ones; the engine
is a stand-in that keeps its log on the store as Spark does, with files that are created exclusively.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.files.sink import Files
from fencepost.errors import Fenced, FencepostError
from fencepost.runtime.driver import Driver, Plan
from fencepost.store import store_at

SCHEMA = pa.schema([("id", pa.int64()), ("epoch", pa.int64())])
ROWS = 3
SNAPSHOT = 'v1\n{"nextBatchWatermarkMs":0}'


class Overtaken(Exception):
    """The engine's own log has an entry already: as Spark does, it fails.

    It may be the rightful driver to whom that happens: an older one may begin an epoch before it learns of the newer.
    """


class Racer:
    """A driver, from its start on."""

    def __init__(self, checkpoint: str, target: str) -> None:
        # Of files, because a process that sleeps holds no lock of theirs.
        sinks = {"rows": Files(target, format="json", name="rows")}
        self.store = store_at(checkpoint)
        self.driver = Driver(
            Plan(
                config=RunConfig(job="raced", checkpoint=Checkpoint(self.store.root)),
                store=self.store,
                sinks=sinks,
                schemas=dict.fromkeys(sinks, SCHEMA),
                modes=dict.fromkeys(sinks, "append"),
            )
        )

    def recover(self) -> Mapping[str, Any]:
        """Become the writer."""
        self.driver.recover()
        return {"writer": self.driver.book.writer}

    def run(self, epochs: int, pause_s: float) -> Mapping[str, Any]:
        """Run all epochs that are not complete, and end in order."""
        complete = self._numbers("commits")
        for epoch in range(max(complete, default=-1) + 1, epochs):
            self._log("offsets", epoch, f'v1\n{{"conf":{{}}}}\n{{"position":{epoch}}}', again=True)
            rows = pa.table([[epoch * ROWS + i for i in range(ROWS)], [epoch] * ROWS], schema=SCHEMA)
            self.driver.run_epoch(epoch, self.driver.stage(epoch, rows), lambda: SNAPSHOT)
            self._log("commits", epoch, SNAPSHOT, again=False)
            time.sleep(pause_s)
        self.driver.close()
        return {"ended": "done"}

    def _numbers(self, log: str) -> list[int]:
        return [int(name) for name in self.store.list(log) if name.isdigit()]

    def _log(self, log: str, epoch: int, text: str, *, again: bool) -> None:
        """An epoch that an earlier driver began is begun; one that another completed is not ours to complete."""
        name = f"{log}/{epoch}"
        if again and epoch in self._numbers(log):
            return
        if not self.store.create(name, text.encode()):
            raise Overtaken(name)


def obey(racer: Racer | None, order: Mapping[str, Any]) -> tuple[Racer | None, Mapping[str, Any]]:
    """One order, and how it ended."""
    try:
        if order["do"] == "recover":
            racer = Racer(order["checkpoint"], order["target"])
            return racer, racer.recover()
        assert racer is not None, "recover first"
        return racer, racer.run(order["epochs"], order["pause_s"])
    except Fenced:
        return racer, {"ended": "fenced"}
    except Overtaken:
        assert racer is not None, "only an engine is overtaken"
        by = {"by": "the engine's log"} if racer.driver.fenced() else {}
        return racer, {"ended": "fenced" if by else "overtaken", **by}
    except FencepostError as error:
        return racer, {"ended": error.code, "text": str(error)}


def main(arguments: list[str]) -> int:
    """Obey until the orders end."""
    if arguments:
        from fencepost.spark.spark_session import bring_jar, make_session  # noqa: PLC0415 - only where there is a JVM

        spark = make_session("racer", json.loads(Path(arguments[0]).read_text()))
        assert bring_jar(spark)
    print(json.dumps({"ready": True}), flush=True)
    racer: Racer | None = None
    for line in sys.stdin:
        racer, answer = obey(racer, json.loads(line))
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
