"""A real server for all tests of this folder, emptied before each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from fencepost_proof.rig.redis import Redis as Server

SETTINGS = {"maxmemory": 0, "appendfsync": "always", "maxmemory-policy": "noeviction"}


@pytest.fixture(scope="session")
def _client(redis_server: Server) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url, protocol=2) as client:
        yield client


@pytest.fixture
def reader(_client: Any) -> Iterator[Any]:
    """A client that knows nothing of the sink."""
    _client.flushall()
    yield _client
    for setting, value in SETTINGS.items():
        _client.config_set(setting, value)


@pytest.fixture
def server(redis_server: Server, reader: Any) -> Server:
    """Empty, and with its settings as they were."""
    return redis_server
