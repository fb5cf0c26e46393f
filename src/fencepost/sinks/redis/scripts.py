"""What runs in the server. Redis rolls nothing back, so a script checks everything first and then cannot fail.

    check   would the keys take these rows?                                            the vote, its first chunks
    vote    is the mark as expected? would the keys take the rows? write the mark      the vote, its last chunk
    apply   is the mark as expected? would the keys take the rows? write rows, mark    the commit

What could stop a write half-way is asked before the first one: the kind of value a key holds, a counter's room, the
user's rights. Memory, disk and role are asked by Redis itself, at a script's first write and not later.
Never compares numbers of epochs: Lua has only doubles. The mark is compared as text, with the one that the driver read.

A call from Lua costs as much as what it does, hence one text per shape: of what rows need, each is called once.
"""

from __future__ import annotations

from functools import cache

FIELDS = ("lineage", "generation", "epoch", "handle", "writer", "part", "plain")
"""Of the mark, a hash. `part`: the epoch that is half-way in, and how far; `plain`: the newest one that was written
without a decision."""
MOST_SPELLED_OUT = 50
"""Fields of a hash that are arguments in a script's text; Lua takes 250 at most."""

_MAY = {
    "hash": "may('HSET', key, 'f', 'v') and (i <= whole or may('HDEL', key, 'f'))",
    "string": "i <= whole or may('DEL', key)",
    "counter": "may('INCRBY', key, '1') and may('GET', key)",
    "sorted_set": "may('ZADD', key, '1', 'm') and (i <= whole or may('ZREM', key, 'm'))",
}
"""May the user write this row? Those with gaps need more."""

_SIZE = {"hash": "HLEN", "string": "STRLEN", "counter": "STRLEN", "sorted_set": "ZCARD"}
"""Fails on a key of another kind, and without the right to it; cheaper than TYPE."""

_ALL = {"string": "for i = 2, whole, step do if not may('MSET', with_keys(i, KEYS, 1)) then return {'rights'} end end"}
"""What is asked for many rows at once."""

_EACH = {
    "counter": """
      local found = counter_problem(key, size, ARGV[before_rows + i - 1])
      if found then return found end""",
}

_CHECK = """
local call, ask, may = redis.call, redis.pcall, redis.acl_check_cmd
local whole = 1 + tonumber(ARGV[1])
local limit = 9223372036854770000
local step = 1000  -- Lua passes some thousand values to one command, and not many more

local function with_keys(from, values, before_first)
  local found = {}
  for i = from, math.min(from + step - 1, whole) do
    found[#found + 1] = KEYS[i]
    found[#found + 1] = values[before_first + i - 1]
  end
  return unpack(found)
end

local function counter_problem(key, size, delta)
  if size > 20 then return {'not_a_counter'} end
  local now = call('GET', key)
  if not now then return end
  if now ~= '0' and not string.match(now, '^%-?[1-9]%d*$') then return {'not_a_counter'} end
  local sum = tonumber(now) + tonumber(delta)
  if sum >= limit or sum <= -limit then return {'counter_full'} end
end

local function problem(before_rows)
  <all>
  local last = nil
  for i = 2, #KEYS do
    local key = KEYS[i]
    if key ~= last or i == whole + 1 then
      last = key
      if not (<may>) then return {'rights'} end
      local size = ask('<size>', key)
      if type(size) == 'table' then
        if not (may('<size>', key) and may('TYPE', key)) then return {'rights'} end
        if string.find(size.err, 'WRONGTYPE', 1, true) ~= 1 then return size end
        return {'kind', call('TYPE', key).ok}
      end<each>
    end
  end
end
"""

_WRITE = {
    "hash": """
local function row_values()
  local row = {}
  for i = 1, #names do
    row[2 * i - 1] = names[i]
    row[2 * i] = ARGV[at + i]
  end
  return unpack(row)
end
for i = 2, whole do
  call('HSET', KEYS[i], <row>)
  at = at + #names
end
for i = whole + 1, #KEYS do
  local mask, set, del = next_value(), {}, {}
  for j = 1, #names do
    if string.byte(mask, j) == 49 then
      set[#set + 1] = names[j]
      set[#set + 1] = next_value()
    else
      del[#del + 1] = names[j]
    end
  end
  if #set > 0 then call('HSET', KEYS[i], unpack(set)) end
  call('HDEL', KEYS[i], unpack(del))
end
""",
    "string": """
for i = 2, whole, step do call('MSET', with_keys(i, ARGV, at)) end
for i = whole + 1, #KEYS, step do call('DEL', unpack(KEYS, i, math.min(i + step - 1, #KEYS))) end
""",
    "counter": """
for i = 2, whole do call('INCRBY', KEYS[i], ARGV[at + i - 1]) end
""",
    "sorted_set": """
for i = 2, whole do
  local member, score = next_value(), next_value()
  call('ZADD', KEYS[i], score, member)
end
for i = whole + 1, #KEYS do
  local mask, member = next_value(), next_value()
  call('ZREM', KEYS[i], member)
end
""",
}

_APPLY = """
local fields = {<fields>}
local mark = KEYS[1]
local found = call('HMGET', mark, unpack(fields))
for i = 1, #fields do
  if (found[i] or '') ~= ARGV[1 + i] then return {'moved'} end
end

local names = {}
local at = 2 + 2 * #fields
for i = 1, tonumber(ARGV[at]) do names[i] = ARGV[at + i] end
at = at + #names

local wrong = problem(at)
if wrong then return wrong end
if not (may('HSET', mark, 'f', 'v') and may('HDEL', mark, 'f')) then return {'rights'} end

local function next_value()
  at = at + 1
  return ARGV[at]
end

-- Memory is asked for at the first write, if that one needs any. DEL and HDEL do not.
call('HSET', mark, 'writer', ARGV[1 + #fields + <writer>])
<write>
for i = 1, #fields do
  local value = ARGV[1 + #fields + i]
  if value ~= '' then call('HSET', mark, fields[i], value) else call('HDEL', mark, fields[i]) end
end
return {'done'}
"""


@cache
def check(shape: str) -> bytes:
    """KEYS: the mark, then one per row, those without gaps first. ARGV: how many have none; counters: the numbers."""
    return f"{_asking(shape)}\nreturn problem(1) or {{'fine'}}\n".encode()


@cache
def vote(shape: str) -> bytes:
    """As `apply`, and writes no row. ARGV: as there; of the rows only a counter's."""
    return _marking(shape, "")


@cache
def apply(shape: str, fields: int) -> bytes:
    """KEYS: as above. ARGV: how many rows have no gap; the mark's fields as expected, and as they shall be; how many
    fields a hash has, their names; the rows, those with gaps each behind its mask ("101").
    """
    values = ", ".join(f"names[{i}], ARGV[at + {i}]" for i in range(1, fields + 1))
    if fields > MOST_SPELLED_OUT:
        values = "row_values()"
    return _marking(shape, _WRITE[shape].replace("<row>", values))


def _marking(shape: str, write: str) -> bytes:
    writer = str(FIELDS.index("writer") + 1)
    text = _APPLY.replace("<fields>", ", ".join(f"'{field}'" for field in FIELDS)).replace("<writer>", writer)
    return (_asking(shape) + text.replace("<write>", write)).encode()


def _asking(shape: str) -> str:
    text = _CHECK.replace("<may>", _MAY[shape]).replace("<size>", _SIZE[shape])
    return text.replace("<all>", _ALL.get(shape, "")).replace("<each>", _EACH.get(shape, ""))
