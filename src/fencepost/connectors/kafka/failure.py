"""What goes wrong with Kafka: what it means for the job, and what to do. Never a message's content."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from fencepost.connectors.kafka.fate import Denied
from fencepost.connectors.kafka.messages import BadMessage
from fencepost.connectors.kafka.producers import Undelivered
from fencepost.connectors.kafka.servers import Servers
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, Refused, Retryable, TargetRefused
from fencepost.protocol.records import Handle

LOG_IN_S = 3.0


def failed(error: Exception) -> FencepostError:
    """An epoch could not be written."""
    if isinstance(error, Undelivered):
        return explained(error.error, error.where)
    if isinstance(error, KafkaException):
        return explained(error.args[0])
    if isinstance(error, Denied):
        return not_allowed(str(error))
    if isinstance(error, BadMessage):
        return TargetRefused(
            "bad_message",
            f"A row cannot be turned into a message: {error}.",
            safe=EpochFailed.safe,
            next="Fix the serializer, or the columns that topic_column=, key= and deletes= name, then start the job "
            "again.",
        )
    return EpochFailed(
        "target_silent",
        f"The Kafka brokers do not answer: {error}.",
        next="Check that the brokers are up and reachable; the epoch reruns.",
    )


def of_a_row(error: Exception) -> str:
    """Why one row is not sent, for its dead letter."""
    if isinstance(error, Undelivered):
        return f"its message is refused ({error.error.name()}, {error.where})"
    return f"it cannot be turned into a message ({error})"


def no_answer(error: Exception, servers: Servers) -> FencepostError:
    """Nobody answered, outside an epoch; to kafka-python a refused login looks like that."""
    if servers.security and _is_refused(servers):
        return BadConfig(
            "log_in_refused",
            "Kafka refused the login.",
            safe="Safe: nothing was written; what is decided will be finished.",
            next="Correct user, password or certificates in security={…}, then start the job again.",
        )
    return Retryable(
        "target_silent",
        f"The Kafka cluster at {servers.bootstrap} does not answer: {error}.",
        next="Check that the brokers are up and that servers=… (and security=…, if they require it) is correct, then "
        "start the job again.",
        safe="Safe: nothing was written; what is decided will be finished.",
    )


def _is_refused(servers: Servers) -> bool:
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {**servers.for_writing(), "error_cb": errors.append, "log_level": 0}
    try:
        client = AdminClient(settings)
    except KafkaException as error:
        raise BadConfig(
            "bad_security",
            f"Kafka's client rejects the security settings: {error.args[0].name()}.",
            next="Correct security={…}; check that the certificate files exist.",
        ) from None
    deadline = time.monotonic() + LOG_IN_S
    while time.monotonic() < deadline and not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        client.poll(0.1)
    return time.monotonic() < deadline


def bad_setting(producer: Mapping[str, str]) -> FencepostError:
    """The client cannot even be created."""
    return BadConfig(
        "producer_setting",
        f"librdkafka rejects a setting in producer={{…}} ({', '.join(sorted(producer)) or 'none given'}) or in "
        "security={…}.",
        next="Look for a misspelt name, a value of the wrong type, or a certificate file that does not exist.",
    )


def ended() -> FencepostError:
    """A transaction of the running epoch is no longer open."""
    return EpochFailed(
        "vote_failed",
        "The broker has already ended a transaction of this epoch, or another producer uses our transactional id.",
        next="Start the job again; if it keeps happening, transaction_timeout is too short for an epoch.",
    )


def unknown(handle: Handle) -> FencepostError:
    """Decided, and neither the coordinator nor the topic can say what became of it."""
    return OperatorNeeded(
        "outcome_unknown",
        f"It cannot be determined whether transaction {handle.body['transactional_id']} with {handle.rows} rows was "
        "committed: the coordinator has forgotten it, and its first message is no longer in the topic or cannot be "
        "read.",
        next="Look in the topic for the rows of this epoch (`fencepost tx show` says where they begin), then record "
        "what you found: `fencepost tx settle ID --as committed` or `--as lost`.",
    )


def no_topic(name: str) -> Refused:
    """Topics are not created automatically: the brokers' defaults are rarely what anybody wants."""
    return TargetRefused(
        "no_topic",
        f"Topic {name!r} does not exist.",
        next="Create it with the partitions and the retention you want (kafka-topics.sh --create …), then start the "
        "job again. fencepost does not create topics, because the brokers' defaults rarely fit.",
    )


def explained(error: KafkaError, where: str = "") -> FencepostError:  # noqa: PLR0911 - a table of errors
    """What a client's error means for the job, and what to do. Never a message's content."""
    at = f" ({where})" if where else ""
    match error.code():
        case KafkaError.MSG_SIZE_TOO_LARGE:
            return TargetRefused(
                "message_too_large",
                f"A message is larger than the broker accepts{at}.",
                safe=EpochFailed.safe,
                next="Make the rows smaller, or raise the topic's max.message.bytes; then start the job again.",
            )
        case (
            KafkaError.UNKNOWN_TOPIC_OR_PART
            | KafkaError.TOPIC_EXCEPTION
            | KafkaError._UNKNOWN_TOPIC
            | KafkaError._UNKNOWN_PARTITION
        ):
            return TargetRefused(
                "no_topic",
                f"The topic or partition does not exist{at}.",
                safe=EpochFailed.safe,
                next="Create the topic (or fix the partition column), then start the job again.",
            )
        case (
            KafkaError.TOPIC_AUTHORIZATION_FAILED
            | KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            | KafkaError.CLUSTER_AUTHORIZATION_FAILED
            | KafkaError.SASL_AUTHENTICATION_FAILED
            | KafkaError._AUTHENTICATION
        ):
            return not_allowed(error.name(), at)
        case KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return timeout_too_long("")
        case KafkaError._FENCED | KafkaError.PRODUCER_FENCED | KafkaError.INVALID_PRODUCER_EPOCH:
            return EpochFailed(
                "producer_fenced",
                "Another producer uses our transactional id, or the broker timed the transaction out.",
                next="Start the job again. If it keeps happening: something else uses transactional ids with our "
                "prefix (`fencepost tx list`), or an epoch takes longer than transaction_timeout.",
            )
        case KafkaError._PURGE_QUEUE | KafkaError._PURGE_INFLIGHT:
            return EpochFailed(
                "transaction_refused",
                f"The brokers refused the transaction{at}; the logger 'fencepost.librdkafka' says why.",
                next="Fix what the log names (most often a missing WRITE permission on a topic), then start the job "
                "again.",
            )
        case _:
            return EpochFailed(
                "target_silent",
                f"The brokers did not accept every message: {error.name()}{at}.",
                next="Check that the brokers are up and reachable; the epoch reruns.",
            )


def not_allowed(name: str, at: str = "") -> Refused:
    """The Kafka user may not write."""
    return TargetRefused(
        "not_allowed",
        f"The Kafka cluster denies access: {name}{at}.",
        safe=EpochFailed.safe,
        next="Grant the user WRITE on the topic, and WRITE on transactional ids that begin with the sink's prefix (one "
        "PREFIXED rule); or correct user and password in security={…}.",
    )


def timeout_too_long(why: str) -> Refused:
    """Above the brokers' limit."""
    return TargetRefused(
        "transaction_timeout",
        f"transaction_timeout is longer than the brokers allow{why}.",
        next="Set a shorter transaction_timeout, or raise transaction.max.timeout.ms on the brokers.",
    )
