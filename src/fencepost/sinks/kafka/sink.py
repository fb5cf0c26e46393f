"""The settings of a topic that is written to. See `fencepost.Kafka`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fencepost.errors import BadConfig
from fencepost.kafka_servers import Servers, clients_needed
from fencepost.sinks.contract import Capabilities, Session, Sink, WriteInTask
from fencepost.sinks.kafka.messages import Columns

OURS = frozenset(
    {
        "transactional.id",
        "transaction.timeout.ms",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "bootstrap.servers",
        "metadata.broker.list",
        "enable.gapless.guarantee",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "queue.buffering.max.messages",
        "retries",
        "message.send.max.retries",
    }
)
"""Settings of the producer on which the guarantee rests."""

LONGEST_MS = 900_000
"""The brokers' usual limit of a transaction."""
NOT_KEPT = (
    "keep_rows=False: if the driver is down for longer than the transaction timeout, the brokers drop what was "
    "decided. The epoch then runs again if nothing of it is visible; if a part is, the job stops and a person has to "
    "choose"
)


@dataclass(frozen=True, kw_only=True)
class KafkaSink(Sink):
    """A topic, and how rows become its messages."""

    name: str
    servers: Servers
    columns: Columns
    keep_rows: bool = True
    parallel: bool = False
    timeout_ms: int | None = None
    """None: fifteen minutes, or as long as the brokers allow."""
    prefix: str
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse settings that would break the promise."""
        login = {name for name in self.producer if name.startswith(("sasl.", "ssl.", "security."))}
        if broken := sorted((OURS & {*self.producer}) | login):
            raise BadConfig(
                "producer_setting",
                f"producer={{{broken[0]!r}: …}} is not for you to set: exactly-once rests on it, or on the log-in.",
                next="Leave it out; the timeout has an argument of its own (transaction_timeout), and so has the "
                "log-in (security).",
            ).at(sink=self.name)

    @property
    def capabilities(self) -> Capabilities:
        """A transaction that is ended once is ended for ever; the broker may end an open one by itself."""
        return Capabilities(
            shape="transaction",
            repeatable=True,
            perishable=True,
            keeps_rows=self.keep_rows,
            atomic=False,  # readers are let go on partition by partition
            modes=frozenset({"append", "update"}),
            note="" if self.keep_rows else NOT_KEPT,
        )

    def in_tasks(self, job: str) -> WriteInTask | None:
        """With `parallel`, the tasks write."""
        if not self.parallel:
            return None
        with clients_needed():
            from fencepost.sinks.kafka.parallel import TaskWriter  # noqa: PLC0415 - its clients are an extra
        return TaskWriter(job=job, sink=self)

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        with clients_needed():
            from fencepost.sinks.kafka.session import KafkaSession  # noqa: PLC0415 - as above
        return KafkaSession(self, job)
