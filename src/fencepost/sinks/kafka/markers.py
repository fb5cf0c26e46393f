"""A transaction is committed for its coordinator, and a partition still holds it open: its rows never become visible.

A broker that was killed between the two (Kafka 4.3, KRaft) was seen to come back like that, for ever: the coordinator
had noted the commit, had not yet written the marker to the partition, and after the restart believed that it had. The
next transaction of the same producer would take the forgotten rows along, also if it is aborted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from fencepost.errors import OperatorNeeded
from fencepost.sinks.kafka.coordinator import Coordinator, Denied
from fencepost.sinks.kafka.outcome import Fate, fate

UNDER_WAY = "PrepareCommit"

log = logging.getLogger("fencepost")


def see_through(coordinator: Coordinator, body: Mapping[str, Any]) -> None:
    """See that every partition has ended a committed transaction; write the markers that are missing.

    Only while the coordinator remembers this very transaction, before and after the partitions were asked: what they
    hold then is this one, and nobody has opened another under its name.
    """
    places = [(topic, number) for topic, numbers in body.get("partitions", {}).items() for number in numbers]
    for _ in range(40):
        found = coordinator.describe([body["id"]])[body["id"]]
        if found is None or fate(body, found) is not Fate.COMMITTED:
            return
        if found.state == UNDER_WAY:
            time.sleep(0.05)
            continue
        try:
            held = [one for one in coordinator.held(places) if (one.pid, one.epoch) == (body["pid"], body["epoch"])]
        except Denied:
            log.debug("no READ on the topics of %s: whether its partitions have ended it cannot be seen", body["id"])
            return
        if not held or coordinator.describe([body["id"]])[body["id"]] != found:
            return
        where = ", ".join(f"{one.topic} {one.partition} at offset {one.first}" for one in held)
        log.warning("transaction %s is committed, but still open on %s: writing its markers", body["id"], where)
        try:
            coordinator.mark_committed(held, found.epoch)
        except Denied as error:
            raise OperatorNeeded(
                "hanging_transaction",
                f"The broker has committed transaction {body['id']} and lost the markers of {where}: readers wait "
                f"there for ever, and we may not write them ({error}).",
                safe="Safe: the rows are in the topic, decided and committed; they only have to be made visible. Do "
                "not abort them (kafka-transactions.sh would).",
                next="Grant ALTER on the cluster (writing markers needs it) and start the job again.",
            ) from error
