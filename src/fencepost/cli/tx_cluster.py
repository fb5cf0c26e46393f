"""One Kafka cluster, as `fencepost tx` asks it: its silence and its refusals become four lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fencepost.errors import UNCHANGED, BadConfig, Retryable, TargetRefused
from fencepost.kafka_servers import Servers
from fencepost.protocol.records import Handle
from fencepost.sinks.kafka import ending, inventory
from fencepost.sinks.kafka.coordinator import Coordinator, Denied, Silent, Transaction
from fencepost.sinks.kafka.inventory import Row
from fencepost.sinks.kafka.outcome import Fate, fate

PATIENCE_S = 6.0


class Cluster:
    """The coordinator, and the topics where it has forgotten."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.coordinator = Coordinator(servers, patience=PATIENCE_S)

    def fate_of(self, handle: Handle, found: Transaction | None = None) -> Fate:
        """What became of a decided transaction: by the coordinator's memory, else by the topic's."""
        now = fate(handle.body, found)
        return ending.by_topic(self.coordinator, self.servers, handle.body) if now is Fate.UNKNOWN else now

    def others(self, row: Row) -> Mapping[str, Transaction | None]:
        """What the coordinator says of everything in the open decision."""
        assert row.ledger is not None
        return self.coordinator.describe(handle.body["id"] for handle in inventory.decided(row.ledger.state))


@contextmanager
def ask(servers: Servers | None) -> Iterator[Cluster]:
    """A cluster; its silence and its refusals become four lines."""
    if servers is None:
        raise no_servers()
    cluster = Cluster(servers)
    try:
        yield cluster
    except Silent as error:
        raise Retryable(
            "target_silent",
            f"The Kafka cluster does not answer: {error}.",
            safe="Safe: a decided transaction stays decided. If an end was asked for, look again whether it happened.",
            next="See that the brokers are up and that --servers and --config are right, then try again.",
        ) from error
    except Denied as error:
        raise TargetRefused(
            "not_allowed",
            f"The cluster refuses us: {error}.",
            safe=UNCHANGED,
            next="Looking needs DESCRIBE on the transactional id, ending it WRITE. Grant them, or mend --config.",
        ) from error
    finally:
        cluster.coordinator.close()


def no_servers() -> BadConfig:
    """Neither the options nor the file name one."""
    return BadConfig(
        "no_servers",
        "No Kafka server is named.",
        safe=UNCHANGED,
        next="Give --servers host:9092, or --config with bootstrap.servers in it.",
    )
