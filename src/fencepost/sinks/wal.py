"""Any function as a sink: rows are staged first and sent after the decision, so nothing undecided ever leaves.

Never claims more than it can know: a call that failed may have sent its rows, so they are sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass

import pyarrow as pa

from fencepost.errors import BadConfig, EpochFailed
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle
from fencepost.rows import Rows
from fencepost.sinks.contract import Capabilities, OutputMode, Session, Sink, place_of
from fencepost.sinks.rehearsal import Rehearsal

__all__ = ["EpochContext", "WriteAheadLog"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochContext:
    """Which epoch is being sent. Stored beside the rows, (generation, epoch) lets the target refuse a second copy.

    The mistake people make: storing the epoch alone. It starts again after a restore; the generation does not.
    """

    job: str
    sink: str
    generation: int
    epoch: int


Send = Callable[[EpochContext, Iterable[pa.RecordBatch]], object]


@dataclass(frozen=True)
class WriteAheadLog(Sink):
    """Hand the rows of every decided epoch to `send(context, batches)`.

        def send(context, batches):
            for batch in batches:
                requests.post(URL, json=batch.to_pylist(), timeout=10).raise_for_status()

        job.write(words, fp.WriteAheadLog(send, name="words-api"))

    At least once: when `send` raises, or the driver dies in it, the same rows are sent again. With `idempotent=True`
    you declare that a second call with the same rows changes nothing (it upserts by key, or stores the context), and
    the job counts as exactly once in effect.

    The mistake people make: swallowing errors in `send`. What returns is done, for ever; raise, and it is tried again.
    """

    send: Send
    _: KW_ONLY
    name: str
    idempotent: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work, where the user wrote it."""
        if not self.name or not callable(self.send):
            raise BadConfig(
                "bad_sink",
                "WriteAheadLog needs a function send(context, batches) and a name.",
                next='Write WriteAheadLog(send, name="…").',
            )

    @property
    def capabilities(self) -> Capabilities:
        """A function's calls are never seen whole; repeatable only if its author says so."""
        return Capabilities(
            shape="apply",
            repeatable=self.idempotent,
            atomic=False,
            modes=frozenset({"append", "update"} if self.idempotent else {"append"}),
            replaces=self.idempotent,
            remedy="" if self.idempotent else "Make send() harmless to repeat, and declare idempotent=True.",
        )

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        return WriteAheadLogSession(self, job)


class WriteAheadLogSession(Session):
    """The driver's side of a function."""

    def __init__(self, sink: WriteAheadLog, job: str) -> None:
        self._sink = sink
        self._job = job

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """A function has no place to keep an identity: its name has to do."""
        if mode not in self._sink.capabilities.modes:
            raise BadConfig(
                "mode_needs_key",
                "In output mode update a row replaces an earlier one; this function does not say that it does so.",
                next="Declare idempotent=True if send() upserts by key, or use output mode append.",
            ).at(job=self._job, sink=self._sink.name)
        return f"function:{self._sink.name}"

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """Nothing is called."""
        return Rehearsal(self.preflight(schema, mode))

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are staged already; name them."""
        count = rows.count
        if not count:
            return None
        return Handle(id=self.owner.handle_id(epoch), sink=self._sink.name, rows=count, kept=rows.kept)

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Staged rows can always be sent."""
        return ()

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Send; an error leaves it open whether the rows arrived."""
        return {handle.id: self._send(epoch, self.owner.staging.rows_again(handle)) for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send at once."""
        if rows.count and self._send(epoch, rows) is not Outcome.DONE:
            raise EpochFailed(
                "target_silent",
                "The function failed; how is in the log.",
                next="See that the function's target works, then start the job again.",
                safe="The epoch's rows may or may not have been sent.",
            ).at(job=self._job, epoch=epoch, sink=self._sink.name)

    def _send(self, epoch: Epoch, rows: Rows) -> Outcome:
        context = EpochContext(job=self._job, sink=self._sink.name, generation=self.owner.generation, epoch=epoch)
        try:
            self._sink.send(context, rows.batches())
        except Exception as error:  # noqa: BLE001 - in doubt is the only honest answer to any of them
            log.warning("sink %s: send() failed in epoch %d: %s", self._sink.name, epoch, place_of(error))
            return Outcome.IN_DOUBT
        return Outcome.DONE
