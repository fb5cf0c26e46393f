"""Reading topics: Spark's own connector with the options that exactly-once needs. Never skips a lost record.

Spark waits three minutes for a broker that is down, and does not notice that a topic was deleted, recreated and filled
beyond the old offsets. The connector's Kafka client answers both questions in a few milliseconds, so it is asked for
every plan that reads Kafka, even one built without `fp.Kafka` (see `fencepost.connectors`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, Where
from fencepost.spark.jvm import finds_class, java_class_of
from fencepost.store.notes import TopicIds, encode_note, read_note

if TYPE_CHECKING:
    from fencepost.connectors.kafka.sink import Kafka, Start
    from fencepost.store import Store

TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")

OURS: Mapping[str, str] = {
    "subscribe": "topic",
    "subscribepattern": "topic=re.compile(…)",
    "assign": "topic, and start={topic: {partition: offset}}",
    "startingoffsets": "start",
    "startingoffsetsbytimestamp": "start",
    "startingtimestamp": "start",
    "kafka.auto.offset.reset": "start",
    "maxoffsetspertrigger": "max_records_per_epoch",
    "includeheaders": "headers",
    "kafka.bootstrap.servers": "servers",
    "kafka.isolation.level": "isolation",
    "kafka.group.id": "the option groupIdPrefix: two jobs in one group would take each other's records",
}
"""Spark's options that are arguments of `fp.Kafka`, which checks them."""

PATIENCE: Mapping[str, str] = {
    "kafka.default.api.timeout.ms": "15000",
    "kafka.request.timeout.ms": "15000",
    "fetchOffset.numRetries": "8",
}
"""A broker may be down for two minutes before the query fails. With Spark's own values it is three, but in steps of a
minute during which a job cannot be stopped."""

FETCH_WAIT = "kafka.fetch.max.wait.ms"
PROMPT_MS = "20"
"""Kafka's own 500 is for consumers that wait for what comes next. A task asks only for records that are there, but has
to sit out a request of the epoch before, which was sent when there was nothing to fetch."""
WAITS_LONG = (
    "source kafka has Kafka's own fetch.max.wait.ms of 500 ms, which a task may have to sit out before it gets records "
    f"that are there: rows of a slow topic are late by that much; use fp.Kafka, or the option {FETCH_WAIT}={PROMPT_MS}"
)

PATIENCE_MS = 10_000
"""A broker that is up answers in milliseconds."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Brokers before 2.8 have no topic ids; a replaced topic is then noticed only if the offsets do not fit."""
AS_DECIDED = "Safe: every decided epoch is in the sinks exactly once, or will be; no record of a new topic is decided."
READS_UNCOMMITTED = (
    "source kafka is read with isolation read_uncommitted (Spark's default): rows whose producer aborted them are "
    "counted too, so the result is exact for the topic, not for what its producers committed; "
    "use fp.Kafka, or the option kafka.isolation.level=read_committed"
)

Topics = tuple[str, ...] | re.Pattern[str]


def spark_options(source: Kafka) -> dict[str, str]:
    """Spark's options for this source, except addresses and login; refuses settings that cannot work."""
    topics = _topics(source)
    if source.isolation not in ("read_committed", "read_uncommitted"):
        raise BadConfig(
            "unknown_isolation",
            f"Unknown isolation {source.isolation!r}.",
            next="Use 'read_committed', or 'read_uncommitted' to also see rows of transactions that may be aborted.",
        )
    most: Any = source.max_records_per_epoch
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise BadConfig(
            "bad_rate", "max_records_per_epoch must be a positive integer.", next="Use 1 or more, or leave it out."
        )
    for name in source.options:
        _check_option(name)
    found = {**_subscription(topics), **_beginning(source.start, topics), **source.options}
    if not {name.lower() for name in source.options} & {name.lower() for name in PATIENCE}:
        found |= PATIENCE  # all or none: Kafka refuses some combinations
    if FETCH_WAIT not in (name.lower() for name in source.options):
        found[FETCH_WAIT] = PROMPT_MS
    found["kafka.isolation.level"] = source.isolation
    if most is not None:
        found["maxOffsetsPerTrigger"] = str(most)
    if source.headers:
        found["includeHeaders"] = "true"
    return found


def _topics(source: Kafka) -> Topics:
    named: Any = source.topic
    if named is None:
        raise BadConfig("no_topic", "No topic to read is given.", next="Name one: fp.Kafka('lines', …).")
    if isinstance(named, re.Pattern):
        return named
    topics = (named,) if isinstance(named, str) else tuple(named)
    if not topics:
        raise BadConfig(
            "no_topics", "The list of topics is empty.", next="Give names, fp.Kafka(('orders',), …), or a pattern."
        )
    for topic in topics:
        if not isinstance(topic, str) or not TOPIC.fullmatch(topic):
            raise BadConfig(
                "bad_topic",
                f"Invalid topic name: {topic!r}.",
                next="Use letters, digits, dots, underscores and dashes; for many topics, give a compiled pattern.",
            )
    return topics


def _check_option(name: str) -> None:
    low = name.lower()
    if low == "failondataloss":
        raise BadConfig(
            "fail_on_data_loss",
            "The option failOnDataLoss is reserved: with false, Spark silently skips lost records.",
            next="Remove the option; if records are lost, the job stops and says so.",
        )
    if low.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl.")):
        raise BadConfig(
            "option_is_ours",
            f"Set the option {name!r} with an argument of fp.Kafka.",
            next="Use security={…} with librdkafka's setting names.",
        )
    if low in OURS:
        raise BadConfig(
            "option_is_ours", f"Set the option {name!r} with an argument of fp.Kafka.", next=f"Use {OURS[low]}."
        )


def _subscription(topics: Topics) -> dict[str, str]:
    if not isinstance(topics, re.Pattern):
        return {"subscribe": ",".join(dict.fromkeys(topics))}
    if topics.flags & ~(re.UNICODE | re.IGNORECASE):
        raise BadConfig(
            "bad_pattern",
            "The topic pattern has flags that Java does not have.",
            next="Use no flag except re.IGNORECASE.",
        )
    return {"subscribePattern": ("(?i)" if topics.flags & re.IGNORECASE else "") + topics.pattern}


def _beginning(start: Start, topics: Topics) -> dict[str, str]:
    """Spark's options for where a new job begins."""
    if isinstance(start, str) and start in ("earliest", "latest"):
        return {"startingOffsets": start}
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise BadConfig(
                "naive_time",
                "The datetime in `start` has no time zone: it would mean a different time on another machine.",
                next="Add one: datetime(2026, 1, 31, tzinfo=UTC).",
            )
        return _from_time(int(start.timestamp() * 1000))
    if isinstance(start, int) and not isinstance(start, bool):
        if start < 100_000_000_000:
            raise BadConfig(
                "bad_start",
                "`start` must be a Unix time in milliseconds; this looks like seconds.",
                next="Multiply seconds by 1000, or give a datetime with a time zone.",
            )
        return _from_time(start)
    if isinstance(start, Mapping):
        return {"startingOffsets": _positions(start, topics)}
    raise BadConfig(
        "bad_start",
        "Invalid `start`.",
        next="Use 'earliest', 'latest', a datetime with a time zone, a Unix time in milliseconds, or "
        "{topic: {partition: offset}}.",
    )


def _from_time(ms: int) -> dict[str, str]:
    """A partition without a record that recent is read from its end; Spark's default is to fail."""
    return {"startingTimestamp": str(ms), "startingOffsetsByTimestampStrategy": "latest"}


def _positions(start: Mapping[str, Any], topics: Topics) -> str:
    if not isinstance(topics, re.Pattern) and set(start) != set(topics):
        raise BadConfig(
            "bad_start",
            "`start` and `topic` do not name the same topics.",
            next="List every topic with all its partitions; -2 means the first record, -1 the end.",
        )
    for partitions in start.values():
        if not isinstance(partitions, Mapping) or not partitions:
            raise BadConfig(
                "bad_start",
                "A topic in `start` has no partitions.",
                next="Write start={'orders': {0: 500, 1: -2}}.",
            )
        for partition, offset in partitions.items():
            if not all(type(number) is int for number in (partition, offset)) or partition < 0 or offset < -2:
                raise BadConfig(
                    "bad_start",
                    "`start` has an invalid partition or offset.",
                    next="Use integers: start={'orders': {0: 500, 1: -2}}; -2 means the first record, -1 the end.",
                )
    return json.dumps({topic: {str(p): offset for p, offset in ps.items()} for topic, ps in start.items()})


TopicsNow = dict[str, dict[str, str]]
"""By topic, the id that each source reads now; "" if the broker has no ids. Two clusters may have one of that name."""


def find(spark: Any, options: Mapping[str, Mapping[str, str]], job: str) -> TopicsNow:
    """Every topic that sources with these options would read now; by source."""
    asked: dict[str, list[str]] = {}
    for source, told in options.items():
        asked.setdefault(json.dumps(told, sort_keys=True), []).append(source)
    found: TopicsNow = {}
    for text, sources in sorted(asked.items()):
        with _explained(json.loads(text), job):
            for topic, name in _describe(_question(spark, text), job):
                found.setdefault(topic, {}).update(dict.fromkeys(sources, name if name != NO_ID else ""))
    return found


def find_again(spark: Any, options: Mapping[str, Mapping[str, str]], job: str) -> TopicsNow:
    """The same between the tasks of an epoch and its decision: a topic that is not there was there at the start."""
    try:
        return find(spark, options, job)
    except BadConfig as error:
        raise (range_lost(job) if error.code == "no_topic" else error) from error.__cause__


def check_same(store: Store, lineages: Sequence[str], topic: str, now: Mapping[str, str], job: str) -> None:
    """Refuse a topic that is not the one whose offsets the checkpoint holds; record one that is new to it."""
    file, *older = (f"fencepost/{lineage}/topics/{topic}" for lineage in lineages)
    noted = [read_note(store, name, TopicIds) for name in (file, *older)]
    before = next((note for note in noted if note is not None), TopicIds(topic, []))
    ids = set(now.values()) - {""}
    other = [one for one, name in sorted(now.items()) if name and before.by_source.get(one, name) != name]
    if ids and (other or set(before.ids) - ids):
        whose = f" of source {other[0]}" if other and set(before.ids) == ids else ""
        raise OperatorNeeded(
            "source_replaced",
            f"Topic {topic!r}{whose} was deleted and recreated, or belongs to another cluster: the offsets in the "
            "checkpoint are those of the old topic.",
            where=Where(job=job, path=f"{store.root}/{file}"),
            safe=AS_DECIDED,
            next="If two sources read topics of this name from two clusters, bring them back in their old order. If "
            "not, start a new checkpoint on the new topic (start=… sets where to begin). Only if its records have the "
            "same offsets as before (a mirror): delete the file above and start the job again.",
        )
    fresh = TopicIds(topic, sorted(ids), {one: name for one, name in now.items() if name})
    if noted[0] is None or ids - set(before.ids) or fresh.by_source.items() - before.by_source.items():
        store.replace(file, encode_note(fresh))


def notes(options: Mapping[str, str]) -> Iterator[str]:
    """What a source with these options gives up."""
    if options.get("kafka.isolation.level", "").lower() != "read_committed":
        yield READS_UNCOMMITTED
    if FETCH_WAIT not in options:
        yield WAITS_LONG


def settings(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Options that change how soon a record is seen."""
    if FETCH_WAIT in options:
        yield FETCH_WAIT, options[FETCH_WAIT]


def explain(text: str, job: str) -> FencepostError | None:
    """Does Spark say that a range is gone? Up to 4.2 only its wording tells, not an error class."""
    words = (
        "KAFKA_DATA_LOSS",
        "Some data may have been lost because they are not available in Kafka",
        "UnknownTopicOrPartitionException",
    )
    return range_lost(job) if any(word in text for word in words) else None


def range_lost(job: str) -> OperatorNeeded:
    """Records that nobody read are gone."""
    return OperatorNeeded(
        "range_lost",
        "The records after the last decided epoch are no longer in the topic: retention removed them, or the topic or "
        "a partition was deleted.",
        where=Where(job=job),
        safe="Safe: what is decided is complete, or will be finished at the next start; nothing of the lost range was "
        "written.",
        next="Get the lost records from elsewhere (a copy, the producer), write them to the topic again, and start a "
        "new checkpoint with start=… after what is decided. Set the topic's retention longer than your longest outage.",
    )


class _Question(NamedTuple):
    """What the brokers are asked about a source. Kept: each name of Java's that it takes is a call into the JVM."""

    client: Any
    rights: Any
    """Asks a broker that has ACLs for our permissions too."""
    topics: Any
    """Java's list of them; for a pattern, Java's class for one."""
    other: Any
    """For a pattern: which topics do not match it?"""
    describe: Callable[[Any, Any, Any], str] | None
    """Asks and reads the answer in one call; None where our jar is not in the session."""


_questions: dict[tuple[Any, str], _Question] = {}
"""By JVM and options, because topics are looked up before every decision."""
_clients: dict[tuple[Any, str], Any] = {}
"""By JVM and settings. Kept open; their threads are daemons."""


def _question(spark: Any, options: str) -> _Question:
    jvm = spark._jvm
    key = jvm._gateway_client, options
    if key not in _questions:
        told = json.loads(options)
        rights = jvm.org.apache.kafka.clients.admin.DescribeTopicsOptions().includeAuthorizedOperations(True)
        topics, other = jvm.java.util.ArrayList, None
        if "subscribepattern" in told:
            other = jvm.java.util.regex.Pattern.compile(told["subscribepattern"]).asMatchPredicate().negate()
        else:
            topics = topics()
            for name in json.loads(told["assign"]) if "assign" in told else told.get("subscribe", "").split(","):
                if name.strip():
                    topics.append(name.strip())
        describe = jvm.fencepost.Topics.describe if finds_class(spark, "fencepost.Topics") else None
        _questions[key] = _Question(_client(jvm, told), rights, topics, other, describe)
    return _questions[key]


def _client(jvm: Any, told: Mapping[str, str]) -> Any:
    settings = {name.removeprefix("kafka."): value for name, value in told.items() if name.startswith("kafka.")}
    settings |= {"default.api.timeout.ms": str(PATIENCE_MS), "request.timeout.ms": str(PATIENCE_MS // 2)}
    key = jvm._gateway_client, json.dumps(settings, sort_keys=True)
    if key not in _clients:
        given = jvm.java.util.HashMap()
        for name, value in settings.items():
            given[name] = value
        _clients[key] = jvm.org.apache.kafka.clients.admin.AdminClient.create(given)
    return _clients[key]


@contextmanager
def _explained(told: Mapping[str, str], job: str) -> Iterator[None]:
    """Report the client's error by its class: its text may quote settings."""
    try:
        yield
    except Exception as error:
        kind = java_class_of(error)
        if kind is None:
            raise
        raise _refusal(kind, told, job) from None


def _refusal(kind: str, told: Mapping[str, str], job: str) -> FencepostError:
    where = Where(job=job)
    servers = told.get("kafka.bootstrap.servers", "")
    wanted = next((told[key] for key in ("subscribe", "subscribepattern", "assign") if key in told), "")
    if kind == "UnknownTopicOrPartitionException":
        return BadConfig(
            "no_topic",
            f"At least one of these topics does not exist: {wanted}.",
            where=where,
            next="Create the missing topic (kafka-topics.sh --create …), or correct the name; a job does not create "
            "the topics it reads.",
        )
    if kind in ("SaslAuthenticationException", "SslAuthenticationException"):
        return BadConfig(
            "log_in_refused",
            f"Kafka refused the login ({kind}).",
            where=where,
            next="Correct user, password or certificates in security={…}.",
        )
    if "Authorization" in kind:
        return not_allowed(wanted, job)
    return EpochFailed(
        "no_broker",
        f"Cannot reach Kafka at {servers} ({kind}).",
        where=where,
        safe="Safe: nothing was read or written; what is decided will be finished at the next start.",
        next="Check that the servers are up and their addresses correct, and that security={…} matches what the port "
        "expects; then start the job again.",
    )


def not_allowed(topics: str, job: str) -> BadConfig:
    """The Kafka user may not read."""
    return BadConfig(
        "not_allowed",
        f"This Kafka user is not allowed to read {topics}.",
        where=Where(job=job),
        next="Grant the user READ and DESCRIBE on the topics (kafka-acls.sh --add --consumer …).",
    )


def _describe(asked: _Question, job: str) -> Iterator[tuple[str, str]]:
    """Name and id of each topic."""
    topics = asked.topics
    if asked.other is not None:
        topics = topics(asked.client.listTopics().names().get())
        topics.removeIf(asked.other)
    if asked.describe is not None:
        for name, about in json.loads(asked.describe(asked.client, topics, asked.rights)).items():
            yield _allowed(name, about["id"], about["allowed"], job)
        return
    for name, about in asked.client.describeTopics(topics, asked.rights).allTopicNames().get().items():
        rights = about.authorizedOperations()
        yield _allowed(str(name), str(about.topicId().toString()), rights and map(str, rights), job)


def _allowed(topic: str, name: str, rights: Iterable[str] | None, job: str) -> tuple[str, str]:
    if rights is not None and "READ" not in rights:
        raise not_allowed(repr(topic), job)
    return topic, name
