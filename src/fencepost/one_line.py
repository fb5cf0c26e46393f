"""One line for jobs that exist: `fp.start` in the place of `writer.start()`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fencepost import state as backends
from fencepost.beginning import BridgeName, Settings, check_may_start
from fencepost.checkpointing import Checkpoint, settled
from fencepost.errors import BadConfig, Where
from fencepost.guarantee import Guarantee, check, sink_link, source_link
from fencepost.observe.observer import Observer
from fencepost.run import Run
from fencepost.sinks.contract import Sink
from fencepost.spark import inspect, session
from fencepost.state import Backend
from fencepost.supervise import link

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def start(
    writer: DataStreamWriter,
    *,
    to: Sink,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    state: Backend | None = None,
    job: str | None = None,
    guarantee: str = "exactly_once",
    bridge: BridgeName | None = None,
    adopt: bool = False,
) -> StreamingQuery:
    """Make an existing job exactly-once by changing one line; recover, start, return Spark's own StreamingQuery.

        df.writeStream.outputMode("update").foreachBatch(f).start()                        # before
        fp.start(df.writeStream.outputMode("update"), to=sink, checkpoint="ck/orders")     # after

    The mistake people make: calling `foreachBatch` or `format` on the writer as well. The sink is `to`.
    """
    frame = cast("Any", writer)._df
    kept = settled(checkpoint, state, job)
    kept.check_for_a_query_alone(job)
    name = job or Path(kept.place).name
    check_may_start(name)
    session.check_session(frame.sparkSession, name)
    sources = inspect.check_frame(frame, name)
    mode = inspect.check_writer(writer, name)
    if to.in_tasks(name) is not None:
        raise BadConfig(
            "parallel_needs_job",
            "A sink that the tasks write to changes the plan, and this writer's plan is made already.",
            where=Where(job=name, sink=to.name),
            next="Use fp.Job(…).write(frame, sink), or let the driver write: no parallel=True, staging='checkpoint'.",
        )
    level = Guarantee.parse(guarantee, job=name)
    links = [source_link(source.kind, replayable=source.replayable) for source in sources]
    links += backends.links(frame.sparkSession, [frame], state, kept.place, name)
    check(level, [*links, sink_link(to.name, to.capabilities)], job=name)
    chosen = Settings(
        job=name,
        checkpoint=kept.place,
        guarantee=level,
        mode=mode,
        observer=Observer(name),
        bridge=bridge,
        adopt=adopt,
        state=state,
        **kept.for_a_run,
    )
    link.when_told_to(name, kept.place, None, lambda: None)
    run = Run.start(frame.sparkSession, writer, {to.name: frame}, {to.name: to}, chosen)
    run.end_by_itself()
    return cast("StreamingQuery", run.query)
