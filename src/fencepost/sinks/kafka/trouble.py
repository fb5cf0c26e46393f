"""What goes wrong with Kafka, in our words: what it means for the job, and what to do. Never a message's content."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, Refused, Retryable, TargetRefused
from fencepost.kafka_servers import Servers
from fencepost.protocol.records import Handle
from fencepost.sinks.kafka.coordinator import Denied
from fencepost.sinks.kafka.messages import BadMessage
from fencepost.sinks.kafka.producers import Undelivered

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
            f"A row cannot become a message: {error}.",
            safe=EpochFailed.safe,
            next="Mend the topic column or the serializer, then start the job again.",
        )
    return EpochFailed(
        "target_silent",
        f"The brokers do not answer: {error}.",
        next="See that they are up and reachable; the epoch runs again.",
    )


def no_answer(error: Exception, servers: Servers) -> FencepostError:
    """Nobody answered, outside an epoch; a refused log-in looks like that to one of the clients."""
    if servers.security and _is_refused(servers):
        return BadConfig(
            "log_in_refused",
            "Kafka refused the log-in.",
            safe="Safe: nothing was written; what is decided will be finished.",
            next="Mend security={…}.",
        )
    return Retryable(
        "target_silent",
        f"The Kafka cluster does not answer: {error}.",
        next="See that the brokers are up, that servers=… is right and, if they want it, security=…; "
        "then start the job again.",
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
            f"Kafka's client does not take these settings: {error.args[0].name()}.",
            next="Mend security={…}; paths of certificates have to exist.",
        ) from None
    deadline = time.monotonic() + LOG_IN_S
    while time.monotonic() < deadline and not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        client.poll(0.1)
    return time.monotonic() < deadline


def bad_setting(producer: Mapping[str, str]) -> FencepostError:
    """The client cannot even be made."""
    return BadConfig(
        "producer_setting",
        f"librdkafka does not take a setting of producer={{…}} ({', '.join(sorted(producer)) or 'none given'}) or of "
        "security={…}.",
        next="Look for a misspelt name, a value of the wrong kind, or a certificate's path that does not exist.",
    )


def ended() -> FencepostError:
    """The vote failed."""
    return EpochFailed(
        "vote_failed",
        "The broker has ended a transaction already, or another producer opened our transactional id.",
        next="Start the job again; if it stays, transaction_timeout is too short for an epoch.",
    )


def unknown(handle: Handle) -> FencepostError:
    """Decided, and nobody remembers."""
    return OperatorNeeded(
        "outcome_unknown",
        f"Nobody can tell any more whether transaction {handle.body['id']} with {handle.rows} rows was committed: "
        "the coordinator has forgotten it, and its first message is no longer in the topic or cannot be read.",
        next="Look into the topic for the rows of this epoch (`fencepost tx show` says where they began), then say "
        "what you found: `fencepost tx settle ID --as committed` or `--as lost`.",
    )


def no_topic(name: str) -> Refused:
    """It is not made by itself."""
    return TargetRefused(
        "no_topic",
        f"There is no topic {name!r}.",
        next="Create it with the partitions and the retention you want (kafka-topics.sh --create …), then start the "
        "job again. It is not made by itself: the brokers' defaults are rarely what one wants.",
    )


def explained(error: KafkaError, where: str = "") -> FencepostError:  # noqa: PLR0911 - a table of errors
    """A client's error in our words: what it means for the job, and what to do. Never a message's content."""
    at = f" ({where})" if where else ""
    match error.code():
        case KafkaError.MSG_SIZE_TOO_LARGE:
            return TargetRefused(
                "message_too_large",
                f"A message is larger than the broker takes{at}.",
                safe=EpochFailed.safe,
                next="Make the rows smaller, or raise max.message.bytes of the topic; then start the job again.",
            )
        case (
            KafkaError.UNKNOWN_TOPIC_OR_PART
            | KafkaError.TOPIC_EXCEPTION
            | KafkaError._UNKNOWN_TOPIC
            | KafkaError._UNKNOWN_PARTITION
        ):
            return TargetRefused(
                "no_topic",
                f"There is no such topic or partition{at}.",
                safe=EpochFailed.safe,
                next="Create the topic (or mend the partition column), then start the job again.",
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
                "Another producer opened our transactional id, or the broker timed the transaction out.",
                next="Start the job again. If it stays: something else uses transactional ids that begin like ours "
                "(`fencepost tx list`), or an epoch takes longer than transaction_timeout.",
            )
        case KafkaError._PURGE_QUEUE | KafkaError._PURGE_INFLIGHT:
            return EpochFailed(
                "transaction_refused",
                f"The brokers refused the transaction{at}; why is in the log of 'fencepost.librdkafka'.",
                next="Mend what the log names (most often there is no WRITE on a topic), then start the job again.",
            )
        case _:
            return EpochFailed(
                "target_silent",
                f"The brokers did not take every message: {error.name()}{at}.",
                next="See that the brokers are up and reachable; the epoch runs again.",
            )


def not_allowed(name: str, at: str = "") -> Refused:
    """Too few rights."""
    return TargetRefused(
        "not_allowed",
        f"The cluster refuses us: {name}{at}.",
        safe=EpochFailed.safe,
        next="Writing needs WRITE on the topic, and WRITE on transactional ids that begin with the sink's prefix (one "
        "PREFIXED rule). Grant them, or mend user and password.",
    )


def timeout_too_long(why: str) -> Refused:
    """The broker's limit."""
    return TargetRefused(
        "transaction_timeout",
        f"transaction_timeout is longer than the brokers allow{why}.",
        next="Choose a shorter one, or raise transaction.max.timeout.ms on the brokers.",
    )
