"""What runs in the server. Redis rolls nothing back, so a script checks everything first and then cannot fail.

    CHECK   would the keys take these rows?                                            the vote
    APPLY   is the mark as expected? would the keys take the rows? write rows, mark    the commit

What could stop a write half-way is asked before the first one: the kind of value a key holds, a counter's room, the
user's rights. Memory, disk and role are asked by Redis itself, at a script's first write and not later.
Never compares numbers of epochs: Lua has only doubles. The mark is compared as text, with the one that the driver read.
"""

from __future__ import annotations

FIELDS = ("lineage", "generation", "epoch", "handle", "writer", "part", "plain")
"""Of the mark, a hash. `part`: the epoch that is half-way in, and how far; `plain`: the newest one that was written
without a decision."""

_CHECK = """
local shape = ARGV[1]
local kinds = {hash = 'hash', string = 'string', counter = 'string', sorted_set = 'zset'}
local limit = 9223372036854770000

local function may_do(key)
  local may = redis.acl_check_cmd
  if not may('TYPE', key) then return false end
  if shape == 'hash' then return may('HSET', key, 'f', 'v') and may('HDEL', key, 'f') end
  if shape == 'string' then return may('SET', key, 'v') and may('DEL', key) end
  if shape == 'counter' then return may('INCRBY', key, '1') and may('GET', key) and may('STRLEN', key) end
  return may('ZADD', key, '1', 'm') and may('ZREM', key, 'm')
end

local function counter_problem(key, delta)
  if redis.call('STRLEN', key) > 20 then return {'not_a_counter'} end
  local now = redis.call('GET', key)
  if now ~= '0' and not string.match(now, '^%-?[1-9]%d*$') then return {'not_a_counter'} end
  local sum = tonumber(now) + tonumber(delta)
  if sum >= limit or sum <= -limit then return {'counter_full'} end
end

local function problem(before_rows)
  local last = nil
  for i = 2, #KEYS do
    local key = KEYS[i]
    if key ~= last then
      last = key
      if not may_do(key) then return {'rights'} end
      local kind = redis.call('TYPE', key).ok
      if kind ~= 'none' and kind ~= kinds[shape] then return {'kind', kind} end
      if shape == 'counter' and kind ~= 'none' then
        local found = counter_problem(key, ARGV[before_rows + i - 1])
        if found then return found end
      end
    end
  end
end
"""

CHECK = f"{_CHECK}\nreturn problem(1) or {{'fine'}}\n"
"""KEYS: the mark, then one per row. ARGV: shape; for counters one number per row."""

APPLY = (
    _CHECK
    + """
local fields = {FIELDS}
local writer = WRITER
local mark = KEYS[1]
local found = redis.call('HMGET', mark, unpack(fields))
for i = 1, #fields do
  if (found[i] or '') ~= ARGV[1 + i] then return {'moved'} end
end

local names = {}
local at = 2 + 2 * #fields
for i = 1, tonumber(ARGV[at]) do names[i] = ARGV[at + i] end
at = at + #names

local wrong = problem(at)
if wrong then return wrong end
if not (redis.acl_check_cmd('HSET', mark, 'f', 'v') and redis.acl_check_cmd('HDEL', mark, 'f')) then
  return {'rights'}
end

local function next_value()
  at = at + 1
  return ARGV[at]
end

local write = {
  hash = function(key)
    local mask, set, del = next_value(), {}, {}
    for i = 1, #names do
      if string.byte(mask, i) == 49 then
        set[#set + 1] = names[i]
        set[#set + 1] = next_value()
      else
        del[#del + 1] = names[i]
      end
    end
    if #set > 0 then redis.call('HSET', key, unpack(set)) end
    if #del > 0 then redis.call('HDEL', key, unpack(del)) end
  end,
  string = function(key)
    if next_value() == '1' then redis.call('SET', key, next_value()) else redis.call('DEL', key) end
  end,
  counter = function(key)
    redis.call('INCRBY', key, next_value())
  end,
  sorted_set = function(key)
    local mask, member = next_value(), next_value()
    if mask == '11' then redis.call('ZADD', key, next_value(), member) else redis.call('ZREM', key, member) end
  end,
}
-- Memory is asked for at the first write, if that one needs any. DEL and HDEL do not.
redis.call('HSET', mark, 'writer', ARGV[1 + #fields + writer])
for i = 2, #KEYS do write[shape](KEYS[i]) end

for i = 1, #fields do
  local value = ARGV[1 + #fields + i]
  if value ~= '' then redis.call('HSET', mark, fields[i], value) else redis.call('HDEL', mark, fields[i]) end
end
return {'done'}
""".replace("FIELDS", ", ".join(f"'{field}'" for field in FIELDS)).replace("WRITER", str(FIELDS.index("writer") + 1))
)
"""KEYS: as above. ARGV: shape; the mark's fields as expected, and as they shall be; how many fields a hash has, their
names; the rows."""
