"""The Lua scripts of the streams, each one atomic step. Redis 6.2 commands only; run by EVALSHA, not MULTI,
which Redis refuses at `maxmemory`. Who calls them, and what they promise, is in `stream.py`.
"""

FENCE = """
local epoch = redis.call('GET', KEYS[1])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED by learner epoch ' .. epoch)
end
if not epoch or tonumber(epoch) < tonumber(ARGV[1]) then -- Redis has lost it
  redis.call('SET', KEYS[1], ARGV[1])
end
"""

# KEYS: epoch. Redis 6.2 replicates a script's effects, so the clock may be read.
NEXT_EPOCH = """
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
local epoch = math.max(last + 1, tonumber(redis.call('TIME')[1]))
redis.call('SET', KEYS[1], string.format('%.0f', epoch))
return epoch
"""

# KEYS: epoch, streams ..., other keys to delete ... ARGV: learner epoch, the group of each stream.
# A reader that waits there does not notice.
START_ANEW = (
    FENCE
    + """
redis.call('DEL', unpack(KEYS, 2))
for i = 2, #ARGV do redis.call('XGROUP', 'CREATE', KEYS[i], ARGV[i], '0', 'MKSTREAM') end
"""
)

# KEYS: stream, mark of a loss. ARGV: group, mark
MAKE_ANEW = """
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err then
  if string.find(made.err, 'BUSYGROUP') then return 0 end
  return made
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""

# KEYS: stream, mark of a loss. ARGV: group, entry id, mark
GIVE_UP = """
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""

# KEYS: epoch, in-flight set, prompts. ARGV: learner epoch, then for each prompt: id, count, field, value, ...
APPEND = (
    FENCE
    + """
local appended, i = 0, 2
while i < #ARGV do
  local last = i + 1 + tonumber(ARGV[i + 1])
  if redis.call('SADD', KEYS[2], ARGV[i]) == 1 then
    redis.call('XADD', KEYS[3], '*', unpack(ARGV, i + 2, last))
    appended = appended + 1
  end
  i = last + 1
end
return appended
"""
)

# KEYS: epoch, in-flight set, experiences. ARGV: learner epoch, group, count, entry ids ..., prompt ids ...
RELEASE = (
    FENCE
    + """
local count = tonumber(ARGV[3])
for i = 4, 3 + count, 1000 do -- Lua unpacks some thousands at most
  local last = math.min(i + 999, 3 + count)
  redis.call('XACK', KEYS[3], ARGV[2], unpack(ARGV, i, last))
  redis.call('XDEL', KEYS[3], unpack(ARGV, i, last))
end
for i = 4 + count, #ARGV, 1000 do
  redis.call('SREM', KEYS[2], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
return count
"""
)

# KEYS: source, target. ARGV: group, then for each entry: its id, count, field, value, ... of its successor.
# Acknowledging first also lets the move through at maxmemory, where only a script's first write is checked.
FORWARD = """
local moved, gone, i = {}, {}, 2
while i < #ARGV do
  local last = i + 1 + tonumber(ARGV[i + 1])
  local mine = redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  if mine == 1 then
    gone[#gone + 1] = ARGV[i]
    redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 2, last))
  end
  moved[#moved + 1] = mine
  i = last + 1
end
for first = 1, #gone, 1000 do -- Lua unpacks some thousands at most
  redis.call('XDEL', KEYS[1], unpack(gone, first, math.min(first + 999, #gone)))
end
return moved
"""

# KEYS: dead, requeue. ARGV: entry id of the letter, prompt id
REQUEUE = """
if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', 'id', ARGV[2], 'letter', ARGV[1])
return 1
"""

# KEYS: dead, in-flight set. ARGV: entry id of the letter, prompt id
DROP = """
if redis.call('SISMEMBER', KEYS[2], ARGV[2]) == 1 then return -1 end
return redis.call('XDEL', KEYS[1], ARGV[1])
"""

# KEYS: stream, heartbeat of the consumer. ARGV: group, consumer, who claims
# No idle time is asked for, which would follow a clock that may be set back: of two claimers, the second
# finds nothing. Each entry by itself and JUSTID, so that no payload is copied, with the count that makes it.
CLAIM = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local claimed, items = 0, nil
repeat
  items = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1000, ARGV[2])
  for _, item in ipairs(items) do
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, item[1], 'RETRYCOUNT', item[4] + 1, 'JUSTID')
  end
  claimed = claimed + #items
until #items < 1000
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return claimed
"""

# KEYS: streams. ARGV: the group of each, or ''. Gives for each: entries, those pending (-1 without a group),
# milliseconds since the oldest was appended.
QUEUES = """
local time, found = redis.call('TIME'), {}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i, key in ipairs(KEYS) do
  local first = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  local age = first and math.max(now - tonumber(string.match(first[1], '%d+')), 0) or 0
  local pending = -1
  if ARGV[i] ~= '' then
    local summary = redis.pcall('XPENDING', key, ARGV[i])
    if not summary.err then pending = summary[1] end
  end
  found[i] = {redis.call('XLEN', key), pending, age}
end
return found
"""
