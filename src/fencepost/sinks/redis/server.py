"""What a Redis server says of itself: will it keep what it acknowledges, and what do its errors mean? Pure.

Never passes a text of Redis on: it quotes keys and arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from redis import exceptions as redis_errors

from fencepost.errors import TargetRefused
from fencepost.sinks.database import Silent
from fencepost.sinks.redis.layout import Layout

NOT_SO = (
    "Without it a job would call rows done that are gone after a crash of Redis. If the service keeps them in a way "
    "that cannot be seen here, say durable=True; if they may be lost, durable=False and guarantee='at_least_once'."
)


class NoAccess(Silent):
    """The log-in or the rights are not enough; waiting does not help."""


def check_usable(info: Mapping[str, Any], *, tagged: bool) -> None:
    """Refuse a server on which the script cannot run."""
    if version_of(info) < (7, 0):
        raise TargetRefused(
            "server_too_old",
            f"The server speaks Redis {info.get('redis_version')}; the scripts need 7.0.",
            next="Use Redis 7.0 or newer, or any Valkey.",
        )
    if info.get("role") != "master":
        raise Silent("it is a replica, which takes no rows")
    if info.get("cluster_enabled") and not tagged:
        raise TargetRefused(
            "cluster_needs_tag",
            "The server is part of a cluster, where a script can write only keys of one slot.",
            next="Put a hash tag into the prefix, so that all keys of this sink lie in one slot: prefix='{words}:'. "
            "Or use a server that is no cluster.",
        )


def check_keeps(info: Mapping[str, Any], settings: Mapping[str, str] | None) -> None:
    """Refuse a server that may forget what it acknowledged; `settings` are None if we may not ask for them.

    WAITAOF would make appendfsync everysec good enough, were it reliable: releases of the last years answer it before
    anything is on the disk (redis/redis#13793; seen in Valkey 8.0.1).
    """
    policy = str(info.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise _forgets(
            f"maxmemory-policy is {policy}: with its memory full it drops rows, and the mark",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if not info.get("aof_enabled"):
        raise _forgets("appendonly is no: a crash loses all since its last snapshot", "CONFIG SET appendonly yes")
    if settings is None:
        raise _forgets(
            "this user may not ask for its appendfsync, so whether a crash loses its last second cannot be known",
            "ACL SETUSER <user> +config|get",
        )
    for name, good in (("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")):
        if (found := settings.get(name)) != good:
            raise _forgets(f"{name} is {found}: a crash loses its last seconds", f"CONFIG SET {name} {good}")


def version_of(info: Mapping[str, Any]) -> tuple[int, int]:
    """Of the protocol that it speaks; Valkey says the Redis that it began as."""
    found = re.match(r"(\d+)\.(\d+)", str(info.get("redis_version", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def rights(layout: Layout) -> str:
    """What a user must be allowed, as `ACL SETUSER` takes it. For people, and for the test that shows it is enough."""
    commands = {
        "hash": ("hlen",),
        "string": ("mset", "del", "strlen"),
        "json": ("mset", "del", "strlen"),
        "counter": ("incrby", "strlen"),
        "sorted_set": ("zadd", "zrem", "zcard"),
    }[layout.shape]
    allowed = ("select", "info", "config|get", "get", "set", "hmget", "hset", "hdel", "type", "eval")
    return f"-@all ~{layout.prefix}* ~{layout.own}* {' '.join(f'+{command}' for command in (*allowed, *commands))}"


def explained(error: Exception) -> Silent:
    """What an error means, without its text."""
    for kind, words in _ERRORS:
        if isinstance(error, kind):
            closed = issubclass(kind, (redis_errors.AuthenticationError, redis_errors.NoPermissionError))
            return (NoAccess if closed else Silent)(f"{words} ({type(error).__name__})")
    found = re.match(r"[A-Z]+\b", str(error))
    code = found[0] if found else type(error).__name__
    return Silent(f"{_CODES.get(code, 'it failed')} ({code})")


def _forgets(why: str, cure: str) -> TargetRefused:
    rewrite = "" if cure.startswith("ACL") else ", then CONFIG REWRITE so that it stays so"
    return TargetRefused(
        "target_forgets",
        f"The server may forget what it acknowledged: {why}.",
        next=f"{cure}{rewrite}. {NOT_SO}",
    )


_ERRORS: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.AuthenticationError, "it refuses the log-in"),
    (redis_errors.NoPermissionError, "the user's rights do not allow a command or a key"),
    (redis_errors.BusyLoadingError, "it still reads its data"),
    (redis_errors.TimeoutError, "it did not answer in time"),
    (redis_errors.ReadOnlyError, "it is a replica, which takes no rows"),
    (redis_errors.OutOfMemoryError, "its memory is full (maxmemory)"),
    (redis_errors.ClusterDownError, "its cluster is down"),
    (redis_errors.AskError, "its cluster is moving the keys to another server"),
    (redis_errors.TryAgainError, "its cluster is moving the keys to another server"),
    (redis_errors.ConnectionError, "it cannot be reached"),
    (OSError, "it cannot be reached"),
)
"""The first that fits; also the parents of others."""

_CODES = {
    "MISCONF": "it cannot write to its disk",
    "NOREPLICAS": "it has too few replicas to take writes",
    "BUSY": "somebody's script has been running for long",
    "UNKILLABLE": "somebody's script has been running for long",
    "MASTERDOWN": "it lost its master",
    "NOAUTH": "it wants a log-in",
    "WRONGTYPE": "a key of fencepost's own holds something else",
}
