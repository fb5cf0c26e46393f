"""Which topics a plan reads, asked before it runs: are they there, may they be read, are they the ones they were.

Spark itself waits three minutes for a broker that is away, and does not notice a topic that was deleted, made anew and
filled beyond the old positions. The connector's own Kafka client answers both in a few milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, Where
from fencepost.ledger import Store
from fencepost.spark.inspect import PlanSource

PATIENCE_MS = 10_000
"""A broker that is there answers in milliseconds."""

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Brokers before 2.8 have no ids; then a topic that was replaced is seen only if its positions do not fit."""

AS_DECIDED = "Safe: every decided epoch is in the sinks, complete and once; nothing was read or written now."


def find(spark: Any, sources: Iterable[PlanSource], job: str) -> dict[str, set[str]]:
    """Every topic that a plan would read now, with its id (two, if two clusters have one of that name)."""
    found: dict[str, set[str]] = {}
    options = {json.dumps(source.options, sort_keys=True) for source in sources if source.kind == "kafka"}
    for text in sorted(options):
        told = json.loads(text)
        with _explained(told, job), _client(spark, told) as client:
            for topic, name in _describe(spark, client, told, job):
                found.setdefault(topic, set()).update({name} - {NO_ID})
    return found


def check_same(store: Store, lineages: Sequence[str], found: Mapping[str, set[str]], job: str) -> None:
    """Refuse a topic that is not the one whose positions the checkpoint holds; note those that are new to it.

    `lineages` is this one, then those before it.
    """
    for topic, now in found.items():
        file, *older = (f"fencepost/{lineage}/topics/{topic}" for lineage in lineages)
        noted = (text for text in map(store.read, (file, *older)) if text is not None)
        before = set(next(noted, b"").decode().split())
        if before - now and now:
            raise OperatorNeeded(
                "source_replaced",
                f"The topic {topic!r} was deleted and made anew, or is another cluster's: the positions in the "
                "checkpoint are those of the old one.",
                where=Where(job=job, path=f"{store.root}/{file}"),
                safe=AS_DECIDED,
                next="Begin a new checkpoint on the new topic (start=… says from where). Only if its records have the "
                "same offsets as before (a mirror): remove the file above and start again.",
            )
        if now - before or store.read(file) is None:
            store.replace(file, "\n".join(sorted(now)).encode())


def says_lost(text: str) -> bool:
    """Does Spark say that a range is gone? Up to 4.2 by the words only, not by the name of the error."""
    return "KAFKA_DATA_LOSS" in text or "Some data may have been lost because they are not available in Kafka" in text


def range_lost(job: str) -> OperatorNeeded:
    """Retention, or somebody's hand, was faster than the job."""
    return OperatorNeeded(
        "range_lost",
        "The range after the last decided epoch is no longer in the topic: retention removed it, or the topic or a "
        "partition was deleted.",
        where=Where(job=job),
        safe="Safe: what is decided is complete, or finished at the next start; of the lost range nothing was written.",
        next="The lost records can only come from elsewhere (a copy, the producer). Put them into the topic again, "
        "and begin a new checkpoint with start=… behind what is decided; and let retention outlast your longest stop.",
    )


@contextmanager
def _client(spark: Any, told: Mapping[str, str]) -> Iterator[Any]:
    jvm = spark._jvm
    settings = jvm.java.util.HashMap()
    for name, value in told.items():
        if name.startswith("kafka."):
            settings[name.removeprefix("kafka.")] = value
    settings["default.api.timeout.ms"] = str(PATIENCE_MS)
    settings["request.timeout.ms"] = str(PATIENCE_MS // 2)
    client = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        yield client
    finally:
        client.close(jvm.java.time.Duration.ofSeconds(1))


@contextmanager
def _explained(told: Mapping[str, str], job: str) -> Iterator[None]:
    """The client's error by its class; its text may hold what the user wrote."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - pyspark may be absent when this module is imported

    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        raise _refusal(str(cause.getClass().getSimpleName()), told, job) from None


def _refusal(kind: str, told: Mapping[str, str], job: str) -> FencepostError:
    where = Where(job=job)
    servers = told.get("kafka.bootstrap.servers", "")
    wanted = next((told[key] for key in ("subscribe", "subscribepattern", "assign") if key in told), "")
    if kind == "UnknownTopicOrPartitionException":
        return BadConfig(
            "no_topic",
            f"Kafka has not all of these topics: {wanted}.",
            where=where,
            next="Make the missing topic, or mend the name; the job does not make topics it reads.",
        )
    if kind in ("SaslAuthenticationException", "SslAuthenticationException"):
        return BadConfig(
            "log_in_refused", f"Kafka refused the log-in ({kind}).", where=where, next="Mend security={…}."
        )
    if "Authorization" in kind:
        return not_allowed(wanted, job)
    return EpochFailed(
        "no_broker",
        f"Kafka cannot be reached at {servers} ({kind}).",
        where=where,
        safe="Safe: nothing was read or written; what is decided is finished at the next start.",
        next="See that the servers are right and up, and that security={…} is what their port speaks; start again.",
    )


def not_allowed(topics: str, job: str) -> BadConfig:
    """The user of Kafka has too few rights."""
    return BadConfig(
        "not_allowed",
        f"Kafka does not let this user read {topics}.",
        where=Where(job=job),
        next="Grant the user Read and Describe on the topics (kafka-acls --add --consumer …).",
    )


def _describe(spark: Any, client: Any, told: Mapping[str, str], job: str) -> Iterator[tuple[str, str]]:
    """Name and id of each topic; a broker that knows rights is asked for ours."""
    jvm = spark._jvm
    names = jvm.java.util.ArrayList()
    for name in _names(jvm, client, told):
        names.append(name)
    rights = jvm.org.apache.kafka.clients.admin.DescribeTopicsOptions().includeAuthorizedOperations(True)
    answers = client.describeTopics(names, rights).allTopicNames().get()
    for name in names:
        allowed = answers[name].authorizedOperations()
        if allowed is not None and "READ" not in {str(right) for right in allowed}:
            raise not_allowed(repr(str(name)), job)
        yield str(name), str(answers[name].topicId().toString())


def _names(jvm: Any, client: Any, told: Mapping[str, str]) -> list[str]:
    if "subscribepattern" in told:
        pattern = jvm.java.util.regex.Pattern.compile(told["subscribepattern"])
        return [str(name) for name in client.listTopics().names().get() if pattern.matcher(name).matches()]
    if "assign" in told:
        return list(json.loads(told["assign"]))
    return [name.strip() for name in told.get("subscribe", "").split(",") if name.strip()]
