"""Every shape of Redis against the contract, read by another client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.redis import Redis as Server

from fencepost import Redis
from fencepost.testing import SinkContract


class OnRedis(SinkContract):
    notices_a_setback = True
    tells = True
    finds_strays = True
    settings: dict[str, Any] = {}  # noqa: RUF012 - replaced, not changed

    @pytest.fixture(autouse=True)
    def _server(self, server: Server, reader: Any) -> None:
        self.server = server
        self.reader = reader

    def make_sink(self, tmp_path: Path) -> Redis:
        chosen = {"key": "k", "prefix": f"{tmp_path}:", "chunk_rows": 2} | self.settings
        return Redis(self.server.url, name="words", **chosen)

    def keys(self, tmp_path: Path) -> list[str]:
        return [key.decode() for key in self.reader.keys(f"{tmp_path}:*")]

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})

    def forget(self, tmp_path: Path) -> bool:
        return bool(self.reader.delete(self.make_sink(tmp_path).session("job")._target.mark_key))

    @contextmanager
    def silence(self, tmp_path: Path) -> Iterator[None]:
        self.reader.config_set("maxmemory", 1)
        yield
        self.reader.config_set("maxmemory", 0)


class TestHash(OnRedis):
    settings = {"chunk_rows": 10_000}  # noqa: RUF012 - one chunk; the other shapes get several

    def make_sink(self, tmp_path: Path) -> Redis:
        self.reader.lpush(f"{tmp_path}:taken", "a list")
        return super().make_sink(tmp_path)

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        mine = [key for key in self.keys(tmp_path) if not key.endswith(":taken")]
        found = [(key.removeprefix(f"{tmp_path}:"), self.reader.hgetall(key)) for key in mine]
        return [(key, int(fields[b"v"])) for key, fields in found]

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", "taken", "secret-2"], "v": [1, 2, 3]})

    def misfit(self) -> pa.Schema:
        return pa.schema({"key": pa.string(), "v": pa.int64()})


class TestString(OnRedis):
    settings = {"shape": "string"}  # noqa: RUF012

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return [(key.removeprefix(f"{tmp_path}:"), int(self.reader.get(key))) for key in self.keys(tmp_path)]


class TestCounter(TestString):
    settings = {"shape": "counter"}  # noqa: RUF012

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.float64()})


class TestSortedSet(OnRedis):
    settings = {"shape": "sorted_set", "key": (), "member": "k", "score": "v"}  # noqa: RUF012

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        found = self.reader.zrange(f"{tmp_path}:", 0, -1, withscores=True)
        return [(member.decode(), int(score)) for member, score in found]
