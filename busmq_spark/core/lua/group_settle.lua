-- Settle messages of a shared group, and drop from the queue what every subscription and group has acked.
-- KEYS metadata messages acks group due tries msgid clock bytes
-- ARGV name born most ttl_s, then parts: token action ms count id ..., so many ids
--      action: ack | retry (may be leased again in ms) | extend (its lease ends in ms) | release (may be leased again now; this try does not count)
-- Result {status, for each message: 1 done, 0 its lease is another's now, -1 it was settled before}. status: ok | no_group (the group is of another
--      life of the queue, or there is none).
-- At most `most` messages are dropped a call; the rest with the next.
-- @include even_if_full
-- @include find
-- @include let_go
-- @include lowest
-- @include seen
local name, most = ARGV[1], tonumber(ARGV[3])
local metadata, messages, acks, group, due, tries, msgid, times, bytes = unpack(KEYS)
local known, set = redis.call('HMGET', metadata, 'ttl', 'born', 'retain', 'done', 'lets'), redis.call('HMGET', group, 'born', 'next')
if set[1] ~= ARGV[2] or known[2] ~= ARGV[2] then return {'no_group'} end
local lasting = math.max(tonumber(known[1]) or 0, tonumber(ARGV[4]))
even_if_full(group, lasting)
for i = 3, 6 do redis.call('EXPIRE', KEYS[i], lasting) end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local results, settled, removed, scores, records = {}, {}, {}, {}, {}

local function back(id, score, record)
  scores[#scores + 1], scores[#scores + 2] = string.format('%.0f', score), id
  if record then records[#records + 1], records[#records + 2] = id, record end
end

local function settle(id, record, token, action, ms)
  if not record or settled[id] then return 's' end
  if not string.find(record, token, 1, true) then return 'l' end
  if action == 'ack' then
    settled[id], removed[#removed + 1] = true, id
  elseif action == 'retry' then
    back(id, -(now + ms))
  elseif tonumber(redis.call('ZSCORE', due, id) or -1) < 0 then
    return action == 'release' and 'd' or 'l' -- it was given back before
  elseif action == 'extend' then
    back(id, now + ms)
  else
    local try, rest = string.match(record, '^(%d+)(:.*)$')
    back(id, -now, try - 1 .. rest)
  end
  return 'd'
end

local at = 5
while ARGV[at] do
  local token, action, ms = ':' .. ARGV[at] .. ':', ARGV[at + 1], tonumber(ARGV[at + 2])
  local first, last = at + 4, at + 3 + ARGV[at + 3]
  local found = redis.call('HMGET', tries, unpack(ARGV, first, last))
  for i = 1, #found do results[#results + 1] = settle(ARGV[at + 3 + i], found[i], token, action, ms) end
  at = last + 1
end

-- The low-water mark: everything up to it is settled.
local low, next = tonumber(redis.call('HGET', acks, name) or 0), tonumber(set[2])
if redis.call('ZCARD', due) == #removed then
  low = math.max(low, next)
else
  local oldest = tonumber(redis.call('LINDEX', messages, 0) or nil)
  if oldest then low = math.max(low, math.min(next, oldest - 1)) end
  for _ = 1, 1000 do -- as many as one call settles at most
    local id = string.format('%.0f', low + 1)
    if low >= next or not settled[id] and redis.call('ZSCORE', due, id) then break end
    low = low + 1
  end
end
if #scores > 0 then redis.call('ZADD', due, unpack(scores)) end
if #records > 0 then redis.call('HSET', tries, unpack(records)) end
redis.call('HSET', acks, name, string.format('%.0f', low), ':born', ARGV[2], ':shared:' .. name, 1)
local second = seen(acks, name)
redis.call('EXPIRE', acks, lasting)
if known[3] then
  local q = {metadata = metadata, messages = messages, acks = acks, clock = times, bytes = bytes, ttl = tonumber(known[1]), retain = known[3]}
  local all = lowest(acks, low)
  if all > (tonumber(known[4] or nil) or 0) then redis.call('HSET', metadata, 'done', string.format('%.0f', all)) end
  if known[3] == 'end' or not looked_at(known[5], second) then let_go(q, tonumber(redis.call('GET', msgid) or 0), most) end
else
  local dropped = math.min(find(messages, lowest(acks, low)) + 1, most)
  if dropped > 0 then redis.call('LTRIM', messages, 2 * dropped, -1) end
end
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so what may empty a key comes last.
if #removed > 0 then
  redis.call('ZREM', due, unpack(removed))
  redis.call('HDEL', tries, unpack(removed))
end
return {'ok', table.concat(results)}
