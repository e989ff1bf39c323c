-- Lease messages of a shared group: those that are due again first (their lease has ended, or their redelivery has come), then new ones.
-- KEYS metadata messages acks group due tries
-- ARGV token most room ttl_s again lease_ms
--      token: names the messages of this call, unique for ever. again 1: a call with this token may have been executed, whose reply was lost: what it
--      has leased is returned, and nothing more. lease_ms: of a group that has no other
-- Result {status, now, wait, gone, new, id, value, try, first, id ...}. status: ok | paused | missing (no such queue) | no_group (the group is of
--      another life of the queue, or there is none). now: ms since 1970. wait: ms until a message is due again, -1 when none will be. gone: how many messages
--      were taken from the queue by others before this group had settled them. new: {id, value, id ...} of messages that are leased for the first
--      time; then those that are leased again. try: how often, with this time; first: when first, ms since 1970.
-- due: id -> ms, above 0 the end of its lease, below 0 (negated) when it may be leased again. tries: id -> try:token:first.
-- @include even_if_full
-- @include find
-- @include run
-- @include stored
local token, most, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local metadata, messages, acks, group, due, tries = unpack(KEYS)
local known = redis.call('HMGET', metadata, 'ttl', 'born')
if not known[1] then return {'missing'} end
local set = redis.call('HMGET', group, 'born', 'next', 'lease_ms', 'limit', 'paused')
if set[1] ~= known[2] or not set[2] then return {'no_group'} end
local lasting = math.max(tonumber(known[1]) or 0, tonumber(ARGV[4]))
even_if_full(group, lasting)
for i = 3, 6 do redis.call('EXPIRE', KEYS[i], lasting) end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ms = string.format('%.0f', now)
local head = tonumber(redis.call('LINDEX', messages, 0) or nil)
local out, leased, held, vanished, gone = {'ok', ms, -1, 0, {}}, {}, {}, {}, 0
local ends = string.format('%.0f', now + tonumber(set[3] or ARGV[6]))

local function lease_anew(id, value, try, first)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, value, try, first
  room = room - #value
  leased[#leased + 1] = id
  held[#held + 1], held[#held + 2] = id, try .. ':' .. token .. ':' .. first
end

local function lease_again(ids, same)
  table.sort(ids, function(a, b) return tonumber(a) < tonumber(b) end)
  local records = #ids > 0 and redis.call('HMGET', tries, unpack(ids)) or {}
  for i, id in ipairs(ids) do
    if room <= 0 then break end
    local try, _, first = string.match(records[i] or '', '^(%d+):([^:]*):(%d+)$')
    local value = head and stored(messages, tonumber(id), head)
    if value then
      lease_anew(id, value, tonumber(try or 0) + (same and 0 or 1), first or ms)
    else
      vanished[#vanished + 1], gone = id, gone + 1
    end
  end
end

if ARGV[5] == '1' then
  local ids, all = {}, redis.call('ZRANGEBYSCORE', due, 0, '+inf') -- not those that wait to be tried again, of which there may be very many
  for first = 1, #all, 1000 do
    local upto = math.min(first + 999, #all)
    for i, record in ipairs(redis.call('HMGET', tries, unpack(all, first, upto))) do
      if record and string.match(record, ':([^:]*):') == token then ids[#ids + 1] = all[first + i - 1] end
    end
  end
  lease_again(ids, true)
elseif set[5] then
  out[1] = 'paused'
else
  local limit = tonumber(set[4]) or 0
  if limit > 0 then most = math.min(most, limit - redis.call('ZCOUNT', due, '(' .. ms, '+inf')) end
  if most > 0 then
    local ids = redis.call('ZRANGEBYSCORE', due, 0, ms, 'LIMIT', 0, most)
    if #ids < most then
      for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', due, -1, '-' .. ms, 'LIMIT', 0, most - #ids)) do ids[#ids + 1] = id end
    end
    lease_again(ids)
    local left, last = most - #ids, tonumber(set[2])
    if left > 0 and room > 0 and head then
      local pairs, record = run(messages, find(messages, last) + 1, left, room), '1:' .. token .. ':' .. ms
      for i = 1, #pairs, 2 do
        leased[#leased + 1] = pairs[i]
        held[#held + 1], held[#held + 2] = pairs[i], record
      end
      if pairs[1] then
        gone = gone + tonumber(pairs[1]) - last - 1
        redis.call('HSET', group, 'next', pairs[#pairs - 1])
      end
      out[5] = pairs
    end
  end
end
if #leased > 0 then
  -- The newest first: in the compact form of a small sorted set each is put before the one that was added last, where a look is short.
  local leases = {}
  for i = #leased, 1, -1 do leases[#leases + 1], leases[#leases + 2] = ends, leased[i] end
  redis.call('ZADD', due, unpack(leases))
  redis.call('HSET', tries, unpack(held))
  redis.call('EXPIRE', due, lasting)
  redis.call('EXPIRE', tries, lasting)
end
local lease_end = redis.call('ZRANGEBYSCORE', due, '(' .. ms, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local later = redis.call('ZREVRANGEBYSCORE', due, '(-' .. ms, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local next = math.min(tonumber(lease_end or nil) or math.huge, later and -tonumber(later) or math.huge)
if next < math.huge then out[3] = next - now end
out[4] = gone
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so what may empty a key comes last.
if #vanished > 0 then
  redis.call('ZREM', due, unpack(vanished))
  redis.call('HDEL', tries, unpack(vanished))
end
return out
