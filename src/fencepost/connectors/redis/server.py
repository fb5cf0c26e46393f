"""One Redis server: the connection, the scripts that run in it, its settings, and what its errors mean.

    check   can the keys take these rows?                                            the vote, all but its last chunk
    vote    is the mark as expected? can the keys take the rows? write the mark      the vote, its last chunk
    apply   is the mark as expected? can the keys take the rows? write rows, mark    the commit

A commit skips the second question if the server has counted no write, by anybody, since the vote asked it.

Never lets errors of redis-py or texts of Redis out: they quote keys and values. Never resends a command on its own:
only the mark tells whether a script ran.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
import redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoPermissionError, RedisError
from redis.retry import Retry

from fencepost.connectors.redis.columns import (
    BYTES,
    Chunk,
    Layout,
    Words,
    command,
    packed,
    row_words,
    tag_of,
    with_gaps,
    words,
)
from fencepost.connectors.redis.sink import Redis
from fencepost.connectors.table.database import Denied, RowsRefused, Silent
from fencepost.connectors.table.mark import MARK, Mark
from fencepost.errors import TargetRefused
from fencepost.protocol.format import VERSION

FIELDS = ("lineage", "generation", "epoch", "handle", "writer", "part", "plain", "format", "fencepost")
"""Of the mark, a hash. `part`: the epoch that is partly written, and how far; `plain`: the newest one that was written
without a decision."""
SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "proto-max-bulk-len")
LARGEST = 512 * 1024 * 1024
"""Redis's default limit for a value."""


Request = Iterable[bytes | memoryview]
Columns = Sequence[pa.Array]


class Moved(Exception):
    """The mark is not as expected: another driver was faster. Nothing was written."""


class Target:
    """Connects when needed; after any error the next call uses a new connection."""

    def __init__(self, sink: Redis, job: str) -> None:
        self._sink = sink
        self._job = job
        self._client: Any = None  # redis-py has types for a command's answer, but not for sending any command
        self._identity: bytes | None = None
        own = sink.layout.own
        self.mark_key = f"{own}mark:{job.replace('%', '%25').replace(':', '%3A')}:{sink.name}"
        self._target_key = f"{own}target"
        self.largest = LARGEST
        self._in_cluster = False

    def identify(self) -> str:
        """The random id in the database, created by the first start."""
        if self._identity is None:
            self._run("SET", self._target_key, uuid.uuid4().hex, "NX")
            self._identity = self._run("GET", self._target_key)
        assert self._identity is not None
        return self._identity.decode(errors="replace")

    def identity(self) -> str:
        """The same, without creating it; empty if there is none."""
        found = self._run("GET", self._target_key)
        return "" if found is None else found.decode(errors="replace")

    def state(self) -> Marks:
        """Read the mark."""
        found = self._run("HMGET", self.mark_key, *FIELDS)
        try:
            return Marks.read(found)
        except TargetRefused as error:
            raise error.at(job=self._job, sink=self._sink.name) from None

    def vote(self, layout: Layout, chunks: Iterable[Chunk], before: Marks, after: Marks, handles: str) -> None:
        """Raise `RowsRefused` if a key cannot take its row, `Moved` if the mark has changed; else write the mark again.

        The write proves that memory, disk, role and permissions allow one. It leaves the server's count of writes: see
        `_APPLY`.
        """
        shape = _shape(layout)
        last: list[Chunk] = []

        def requests() -> Iterator[Request]:
            for chunk in chunks:
                if chunk.last:
                    last.append(chunk)
                else:
                    yield self._script(check_script(shape), chunk, words(), *_asked(shape, chunk))

        counts = set(self._answered(requests()))
        since = UNKNOWN if len(counts) > 1 or "" in counts else next(iter(counts), "")
        for chunk in last:
            facts = words(*before.texts, *after.texts, since, handles, 0)
            for _ in self._answered([self._script(vote_script(shape), chunk, facts, *_asked(shape, chunk))]):
                pass

    def apply(self, layout: Layout, steps: Iterable[Write]) -> Iterator[Write]:
        """Write each chunk's rows and mark in one step; `Moved` if the mark has changed.

        The next chunk is sent while the server writes the current one. It expects the mark that the current one leaves,
        so it does nothing if that one did nothing.
        """
        sent: deque[Write] = deque()

        def requests() -> Iterator[Request]:
            for step in steps:
                sent.append(step)
                yield self._apply(layout, step)

        for _ in self._answered(requests()):
            yield sent.popleft()

    def drop(self) -> None:
        """Close the connection. Must not raise."""
        client, self._client = self._client, None
        if client is not None:
            _close(client)

    def forget(self) -> None:
        """Also forget the identity: the next start reads it again and compares it with the ledger. Must not raise."""
        self.drop()
        self._identity = None

    def _apply(self, layout: Layout, step: Write) -> Request:
        chunk, names = step.chunk, step.chunk.names
        counted = step.handles, "" if chunk.last else step.handles
        facts = words(*step.before.texts, *step.after.texts, *counted, len(names), *names)
        shape = _shape(layout)
        whole = [chunk.keys, *chunk.columns]
        gaps = [column.slice(chunk.whole) for column in whole]
        gaps = {"hash": [gaps[0], *with_gaps(gaps[1:])], "sorted_set": gaps[:2]}.get(shape, gaps[:1])
        script = apply_script(shape, len(names))
        return self._script(script, chunk, facts, [column.slice(0, chunk.whole) for column in whole], gaps)

    def _script(self, text: bytes, chunk: Chunk, facts: Words, whole: Columns, gaps: Columns) -> Request:
        """Always with its text: a server that restarted or flushed its scripts would not know it by its hash.

        The keys are declared in a cluster, which then refuses a script before its first write while it moves them.
        """
        declared = row_words([chunk.keys]) if self._in_cluster else words()
        head = words("EVAL", text, 1 + declared.count, self.mark_key)
        rows = packed(whole, gaps)
        is_short = len(rows) <= self.largest
        form = words(chunk.whole, len(whole), len(gaps), "packed" if is_short else "")
        return command(head, declared, form, facts, *([words(rows)] if is_short else map(row_words, (whole, gaps))))

    def _answered(self, requests: Iterable[Request]) -> Iterator[str]:
        """What each script says. One request is sent before the answer to the previous one is read, so that driver and
        server work in parallel.
        """
        connection: Any = None
        unanswered = 0
        try:
            for request in requests:
                connection = connection or self._connected().connection
                unanswered += 1
                with self._explaining():
                    connection.send_packed_command(request)
                if unanswered > 1:
                    unanswered -= 1
                    yield self._judge(connection)
            if unanswered:
                unanswered -= 1
                yield self._judge(connection)
        except (Moved, RowsRefused):
            with suppress(Silent):
                for _ in range(unanswered):
                    self._read(connection)
            raise
        except BaseException:
            if unanswered:
                # Its answer would be mistaken for the next command's.
                self.drop()
            raise

    def _read(self, connection: Any) -> Any:
        with self._explaining():
            return connection.read_response()

    def _judge(self, connection: Any) -> str:
        word, *facts = (part.decode(errors="replace") for part in self._read(connection))
        if word == "moved":
            raise Moved
        if word == "rights":
            raise Denied("this user is not permitted to write the rows")
        if word not in {"fine", "done"}:
            raise RowsRefused(_REFUSALS[word].format(shape=self._sink.shape, kind=facts[0] if facts else ""))
        return facts[0] if facts else ""

    def _run(self, *command: Any) -> Any:
        with self._explaining():
            return self._connected().execute_command(*command)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """After any error the connection is closed."""
        try:
            yield
        except (RedisError, OSError) as error:
            self.drop()
            raise explained(error) from None

    def _connected(self) -> Any:
        if self._client is None:
            client = self._connect()
            try:
                self._examine(client)
            except TargetRefused as error:
                _close(client)
                if self._identity is None:
                    raise
                # It was fine when the job started: a decided epoch has to wait until it is fine again.
                raise Silent(f"it was restarted with other settings ({error.what.rstrip('.')})") from None
            except BaseException:
                _close(client)
                raise
            self._client = client
        return self._client

    def _connect(self) -> Any:
        """To the server in the URL, or to the node of its cluster that owns our slot."""
        patience = {"socket_connect_timeout": self._sink.timeout, "socket_timeout": self._sink.timeout}
        pool = redis.ConnectionPool.from_url(self._sink.address(), **patience, retry=Retry(NoBackoff(), 0), protocol=2)
        client: Any = redis.Redis(connection_pool=pool, single_connection_client=True)
        try:
            client.execute_command("GET", self._target_key)
        except MovedError as moved:
            _close(client)
            options = {**pool.connection_kwargs, "host": moved.host, "port": moved.port}
            there = redis.ConnectionPool(connection_class=pool.connection_class, **options)
            client = redis.Redis(connection_pool=there, single_connection_client=True)
        except BaseException:
            _close(client)
            raise
        return client

    def _examine(self, client: Any) -> None:
        """At every connect: a server that restarted may have other settings, or be empty."""
        found = client.execute_command("GET", self._target_key)
        if self._identity is not None and found != self._identity:
            raise Silent("it was emptied since the job started, or a different database answers at this address")
        info = client.execute_command("INFO")
        check_usable(info, tagged=bool(tag_of(self._sink.prefix)))
        self._in_cluster = bool(info.get("cluster_enabled"))
        settings = None
        with suppress(NoPermissionError):
            settings = client.execute_command("CONFIG GET", *SETTINGS)
        self.largest = int((settings or {}).get("proto-max-bulk-len", LARGEST))
        if self._sink.durable is None:
            check_keeps(info, settings)


def _asked(shape: str, chunk: Chunk) -> tuple[Columns, Columns]:
    """The keys, and what else a vote has to know of each row."""
    more = {"string": [pa.repeat(pa.scalar(b"", BYTES), chunk.whole)], "counter": chunk.columns}.get(shape, [])
    return [chunk.keys.slice(0, chunk.whole), *more], [chunk.keys.slice(chunk.whole)]


def _shape(layout: Layout) -> str:
    return "string" if layout.shape == "json" else layout.shape


def _close(client: Any) -> None:
    with suppress(RedisError, OSError):
        client.close()
        client.connection_pool.disconnect()


_REFUSALS = {
    # A kind may be a module's own type name, but never a value.
    "kind": "a key already holds a {kind}, which shape={shape!r} cannot overwrite",
    "not_a_counter": "a key holds text that is not a whole number, so nothing can be added to it",
    "counter_full": "a counter would overflow 64 bits",
}


@dataclass(frozen=True, slots=True)
class Write:
    """A chunk, the mark it expects, and the mark it leaves."""

    chunk: Chunk
    before: Marks
    after: Marks
    handles: str = ""
    """What was voted for; empty if nothing was."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How many chunks of an epoch are written."""

    mark: Mark
    chunks: int


@dataclass(frozen=True, slots=True)
class Marks:
    """What one sink of one job has in one Redis: its mark, a hash that only the scripts change.

    HGETALL fencepost:mark:orders:words
    lineage 5f… generation 0 epoch 41 handle 5f…-7-41-… writer 7 format 1 fencepost 0.1.0
    part {"chunks": 3, "epoch": 42, "generation": 0, "handle": "5f…-7-42-…", "lineage": "5f…"}
    """

    texts: tuple[str, ...] = ("",) * 9
    """The stored fields, in the order of `FIELDS`; empty if absent."""
    mark: Mark | None = None
    part: Progress | None = None
    plain: Mark | None = None
    """The newest rows that were written without a decision."""

    @classmethod
    def read(cls, found: Sequence[bytes | None]) -> Marks:
        """Parse the fields; `Silent` if somebody wrote something else into them."""
        try:
            texts = tuple((value or b"").decode() for value in found)
            lineage, generation, epoch, handle, writer, half, plain, form, fencepost = texts
            if form:  # before anything else of it is looked at
                MARK.check(int(form), fencepost, error=TargetRefused)
            number = int(writer or 0)
            mark = Mark(lineage, int(generation), int(epoch), handle, number, int(form), fencepost) if lineage else None
            part = None
            if half:
                facts = json.loads(half)
                part = Progress(_mark(facts, number), int(facts["chunks"]))
            return cls(texts, mark, part, _mark(json.loads(plain), number) if plain else None)
        except (ValueError, TypeError, KeyError) as error:
            raise Silent(f"its mark cannot be parsed ({type(error).__name__})") from None

    @property
    def newest(self) -> list[Mark]:
        """A plain write must not be older than any of these."""
        return [mark for mark in (self.mark, self.plain) if mark is not None]

    def touched(self, writer: int) -> Marks:
        """The same mark, with another writer."""
        return self._with(writer)

    def half_way(self, mark: Mark, chunks: int) -> Marks:
        """This many chunks of an epoch are written."""
        return self._with(mark.writer, part=Progress(mark, chunks))

    def whole(self, mark: Mark) -> Marks:
        """The whole epoch is written."""
        return self._with(mark.writer, mark=mark, part=None)

    def written(self, mark: Mark) -> Marks:
        """Rows of an epoch were sent without a decision."""
        return self._with(mark.writer, plain=mark)

    def chunks_of(self, mark: Mark) -> int:
        """How many chunks of this epoch are written."""
        return self.part.chunks if self.part is not None and _facts(self.part.mark) == _facts(mark) else 0

    def _with(self, writer: int, **changes: Any) -> Marks:
        new = replace(self, **changes)
        whole = [str(fact) for fact in _facts(new.mark).values()] if new.mark else [""] * 4
        half = json.dumps({**_facts(new.part.mark), "chunks": new.part.chunks}, sort_keys=True) if new.part else ""
        plain = json.dumps(_facts(new.plain), sort_keys=True) if new.plain else ""
        return replace(new, texts=(*whole, str(writer), half, plain, str(MARK.number), VERSION))


def _facts(mark: Mark) -> dict[str, str | int]:
    """In the order of `FIELDS`."""
    return {"lineage": mark.lineage, "generation": mark.generation, "epoch": mark.epoch, "handle": mark.handle}


def _mark(facts: Mapping[str, Any], writer: int) -> Mark:
    return Mark(str(facts["lineage"]), int(facts["generation"]), int(facts["epoch"]), str(facts["handle"]), writer)


# The scripts. Redis cannot roll back, so a script first checks everything and then cannot fail. What could interrupt it
# between writes is checked before the first one: the kind of value a key holds, a counter's range, the user's
# permissions. Memory, disk and role are checked by Redis itself, at a script's first write and not later.
#
# The mark is compared as text with the one that the driver read, never as numbers: Lua has only doubles.
#
# A call from Lua costs as much as the work it does, so each shape has its own script, which makes no call twice. An
# argument costs as much: all rows are one, packed.
#
# The vote has looked at every key. If the server's own count of writes is still the one that the vote left in the mark,
# nobody has changed a key since, and the commit need not look again. The count starts again when the server saves,
# restarts or follows another one, so what tells these apart is part of it. Whatever of it cannot be read, or has
# changed for any other reason: the commit looks again.

UNKNOWN = "unknown"
"""In place of a count: never equal to one."""

MOST_SPELLED_OUT = 50
"""Up to this many hash fields are spelled out in a script's text; Lua allows 250 at most."""

_MAY = {
    "hash": "may('HSET', key, 'f', 'v') and (not gaps or may('HDEL', key, 'f'))",
    "string": "not gaps or may('DEL', key)",
    "counter": "may('INCRBY', key, '1') and may('GET', key)",
    "sorted_set": "may('ZADD', key, '1', 'm') and (not gaps or may('ZREM', key, 'm'))",
}
"""May the user write this row? Rows with gaps need more permissions."""

_SIZE = {"hash": "HLEN", "string": "STRLEN", "counter": "STRLEN", "sorted_set": "ZCARD"}
"""Fails if the key holds another kind of value or the user may not read it; cheaper than TYPE."""

_ALL = {"string": "for at = 1, ends, 2 * step do if not may('MSET', pairs_from(at)) then return {'rights'} end end"}
"""Checks for many rows at once."""

_EACH = {
    "counter": """
        local found = counter_problem(key, size, rows[at + 1])
        if found then return found end""",
}

_CHECK = r"""
local call, ask, may = redis.call, redis.pcall, redis.acl_check_cmd
local wide, gap_wide = tonumber(ARGV[2]), tonumber(ARGV[3])
local ends = ARGV[1] * wide  -- of the rows without gaps
local limit = 9223372036854770000
local step = 1000  -- Lua passes some thousand values to one command, and not many more

local function all_rows(before_first)
  if ARGV[4] == 'packed' then return cmsgpack.unpack(ARGV[#ARGV]) end
  local found = {}
  for i = before_first + 1, #ARGV do found[#found + 1] = ARGV[i] end
  return found
end

local function writes(more)
  local info, found = ask('INFO', 'server', 'replication', 'persistence'), {}
  for i, name in ipairs({<counted>}) do
    found[i] = type(info) == 'string' and string.match(info, '\n' .. name .. ':(%w+)')
    if not found[i] then return '' end
  end
  found[#found] = found[#found] + more
  return table.concat(found, ' ')
end

local function counter_problem(key, size, delta)
  if size > 20 then return {'not_a_counter'} end
  local now = call('GET', key)
  if not now then return end
  if now ~= '0' and not string.match(now, '^%-?[1-9]%d*$') then return {'not_a_counter'} end
  local sum = tonumber(now) + tonumber(delta)
  if sum >= limit or sum <= -limit then return {'counter_full'} end
end

local rows

local function pairs_from(at) return unpack(rows, at, math.min(at + 2 * step - 1, ends)) end

local function problem_of(first, last, wide, gaps, only_rights)
  local before = nil
  for at = first, last, wide do
    local key = rows[at]
    if key ~= before then
      before = key
      if not (<may>) then return {'rights'} end
      if not only_rights then
        local size = ask('<size>', key)
        if type(size) == 'table' then
          if not (may('<size>', key) and may('TYPE', key)) then return {'rights'} end
          if string.find(size.err, 'WRONGTYPE', 1, true) ~= 1 then return size end
          return {'kind', call('TYPE', key).ok}
        end<each>
      end
    end
  end
end

local function problem(only_rights)
  <all>
  return problem_of(1, ends, wide, false, only_rights) or problem_of(ends + 1, #rows, gap_wide, true, only_rights)
end
"""

_WRITE = {
    "hash": """
local function row_values(at)
  local row = {}
  for i = 1, #names do
    row[2 * i - 1] = names[i]
    row[2 * i] = rows[at + i]
  end
  return unpack(row)
end
for at = 1, ends, wide do call('HSET', rows[at], <row>) end
for at = ends + 1, #rows, gap_wide do
  local mask, set, del = rows[at + 1], {}, {}
  for i = 1, #names do
    if string.byte(mask, i) == 49 then
      set[#set + 1] = names[i]
      set[#set + 1] = rows[at + 1 + i]
    else
      del[#del + 1] = names[i]
    end
  end
  if #set > 0 then call('HSET', rows[at], unpack(set)) end
  call('HDEL', rows[at], unpack(del))
end
""",
    "string": """
for at = 1, ends, 2 * step do call('MSET', pairs_from(at)) end
for at = ends + 1, #rows, step do call('DEL', unpack(rows, at, math.min(at + step - 1, #rows))) end
""",
    "counter": """
for at = 1, ends, 2 do call('INCRBY', rows[at], rows[at + 1]) end
""",
    "sorted_set": """
for at = 1, ends, 3 do call('ZADD', rows[at], rows[at + 2], rows[at + 1]) end
for at = ends + 1, #rows, 2 do call('ZREM', rows[at], rows[at + 1]) end
""",
}

_APPLY = """
local fields = {<fields>}
local mark = KEYS[1]
local found = call('HMGET', mark, 'count', unpack(fields))
for i = 1, #fields do
  if (found[1 + i] or '') ~= ARGV[4 + i] then return {'moved'} end
end

local at = 5 + 2 * #fields
local since, leaves = ARGV[at], ARGV[at + 1]
at = at + 2
local names = {}
for i = 1, tonumber(ARGV[at]) do names[i] = ARGV[at + i] end
rows = all_rows(at + #names)

local now = writes(0)
local calm = now ~= '' and (<calm>)
local wrong = problem(<only_rights>)
if wrong then return wrong end
if not (may('HSET', mark, 'f', 'v') and may('HDEL', mark, 'f')) then return {'rights'} end

-- Memory is asked for at the first write, if that one needs any. DEL and HDEL do not.
call('HSET', mark, 'writer', ARGV[4 + #fields + <writer>])
<write>
for i = 1, #fields do
  local value = ARGV[4 + #fields + i]
  if value ~= '' then call('HSET', mark, fields[i], value) else call('HDEL', mark, fields[i]) end
end
if calm and leaves ~= '' then
  call('HSET', mark, 'count', leaves .. ' ' .. writes(1))
else
  call('HDEL', mark, 'count')
end
return {'done'}
"""

_COUNTED = ("run_id", "master_replid", "rdb_saves", "rdb_last_save_time", "rdb_changes_since_last_save")
"""The last one counts; each of the others changes when it starts again."""


@cache
def check_script(shape: str) -> bytes:
    """KEYS: the mark. ARGV: how many rows have no gap, how many values these have, how many the others; "packed" if the
    last argument is all rows, otherwise each value is one. Rows: the key; of strings nothing more, of counters the
    number to add. Answers with the count of writes.
    """
    return f"{_asking(shape)}\nrows = all_rows(4)\nreturn problem() or {{'fine', writes(0)}}\n".encode()


@cache
def vote_script(shape: str) -> bytes:
    """As `apply`, but writes no rows, and gets those of `check`. It expects the count that `check` saw, if any."""
    return _marking_script(shape, "", "since == '' or since == now", "false")


@cache
def apply_script(shape: str, fields: int) -> bytes:
    """KEYS: as above. ARGV: as above, but before the rows: the mark's fields as expected, and their new values; the
    handles whose vote may have left a count, and those for which it is left again; how many fields a hash has, their
    names. Rows of a hash with gaps: the key, a mask ("101"), a value or nothing for each field.
    """
    values = ", ".join(f"names[{i}], rows[at + {i}]" for i in range(1, fields + 1))
    if fields > MOST_SPELLED_OUT:
        values = "row_values(at)"
    return _marking_script(
        shape, _WRITE[shape].replace("<row>", values), "since ~= '' and found[1] == since .. ' ' .. now", "calm"
    )


def _marking_script(shape: str, write: str, calm: str, only_rights: str) -> bytes:
    writer = str(FIELDS.index("writer") + 1)
    text = _APPLY.replace("<fields>", ", ".join(f"'{field}'" for field in FIELDS)).replace("<writer>", writer)
    text = text.replace("<calm>", calm).replace("<only_rights>", only_rights)
    return (_asking(shape) + text.replace("<write>", write)).encode()


def _asking(shape: str) -> str:
    text = _CHECK.replace("<may>", _MAY[shape]).replace("<size>", _SIZE[shape])
    text = text.replace("<counted>", ", ".join(f"'{name}'" for name in _COUNTED))
    return text.replace("<all>", _ALL.get(shape, "")).replace("<each>", _EACH.get(shape, ""))


NOT_SO = (
    "Otherwise a crash of Redis loses rows that the job counts as done. If the service stores them durably in a way "
    "that we cannot see, set durable=True; if they may be lost, durable=False with guarantee='at_least_once'."
)


def check_usable(info: Mapping[str, Any], *, tagged: bool) -> None:
    """Refuse a server on which the scripts cannot run."""
    if version_of(info) < (7, 0):
        raise TargetRefused(
            "server_too_old",
            f"The server is Redis {info.get('redis_version')}; 7.0 or newer is needed.",
            next="Use Redis 7.0 or newer, or any version of Valkey.",
        )
    if info.get("role") != "master":
        raise Silent("it is a replica, which does not accept writes")
    if info.get("cluster_enabled") and not tagged:
        raise TargetRefused(
            "cluster_needs_tag",
            "The server is part of a cluster, where a script can only write keys in one slot.",
            next="Put a hash tag into the prefix, so that all keys of this sink are in one slot: prefix='{words}:'. "
            "Or use a server that is not part of a cluster.",
        )


def check_keeps(info: Mapping[str, Any], settings: Mapping[str, str] | None) -> None:
    """Refuse a server that may lose acknowledged writes; `settings` is None if this user may not read them.

    WAITAOF would make appendfsync everysec good enough if it were reliable, but recent releases answer it before
    anything is on disk (redis/redis#13793; seen in Valkey 8.0.1).
    """
    policy = str(info.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise _forgets(
            f"maxmemory-policy is {policy}: when memory is full it evicts rows, and the mark",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if not info.get("aof_enabled"):
        raise _forgets(
            "appendonly is no: a crash loses everything since the last snapshot", "CONFIG SET appendonly yes"
        )
    if settings is None:
        raise _forgets(
            "this user may not read appendfsync, so we cannot tell whether a crash loses the last second",
            "ACL SETUSER <user> +config|get",
        )
    for name, good in (("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")):
        if (found := settings.get(name)) != good:
            raise _forgets(f"{name} is {found}: a crash loses the last seconds", f"CONFIG SET {name} {good}")


def version_of(info: Mapping[str, Any]) -> tuple[int, int]:
    """The Redis version; Valkey reports the one it was forked from."""
    found = re.match(r"(\d+)\.(\d+)", str(info.get("redis_version", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def rights(layout: Layout) -> str:
    """The permissions a user needs, for `ACL SETUSER`. For people, and for the test that shows they are enough."""
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
    """What an error means, without its text: `Denied` if a person must change something, otherwise it may pass."""
    name = type(error).__name__
    if _NO_DATABASE in str(error):
        return Denied("it does not have a database with the number in the URL")
    for kind, what in _DENIED:
        if isinstance(error, kind):
            return Denied(f"{what} ({name})")
    for kind, what in _SILENT:
        if isinstance(error, kind):
            return Silent(f"{what} ({name})")
    found = re.match(r"[A-Z]+\b", str(error))
    code = found[0] if found else name
    return Silent(f"{_CODES.get(code, 'it failed')} ({code})")


def _forgets(why: str, cure: str) -> TargetRefused:
    rewrite = "" if cure.startswith("ACL") else ", then CONFIG REWRITE to keep it after a restart"
    return TargetRefused(
        "target_forgets",
        f"The server may lose writes that it has acknowledged: {why}.",
        next=f"{cure}{rewrite}. {NOT_SO}",
    )


_DENIED: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.AuthenticationError, "it refused the login"),
    (redis_errors.AuthenticationWrongNumberOfArgsError, "it refused the login"),
    (redis_errors.NoPermissionError, "this user is not permitted to use a command or a key"),
)
_NO_DATABASE = "DB index is out of range"

_SILENT: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.BusyLoadingError, "it is still loading its data"),
    (redis_errors.TimeoutError, "it did not answer in time"),
    (redis_errors.ReadOnlyError, "it is a replica, which does not accept writes"),
    (redis_errors.OutOfMemoryError, "its memory is full (maxmemory)"),
    (redis_errors.ClusterDownError, "its cluster is down"),
    (redis_errors.AskError, "its cluster is moving the keys to another server"),
    (redis_errors.TryAgainError, "its cluster is moving the keys to another server"),
    (redis_errors.ConnectionError, "it cannot be reached"),
    (OSError, "it cannot be reached"),
)
"""The first match counts, because some are parents of others."""

_CODES = {
    "MISCONF": "it cannot write to its disk",
    "NOREPLICAS": "it has too few replicas to accept writes",
    "BUSY": "another script has been running for a long time",
    "UNKILLABLE": "another script has been running for a long time",
    "MASTERDOWN": "it lost its master",
    "WRONGTYPE": "one of fencepost's own keys holds something else",
}
