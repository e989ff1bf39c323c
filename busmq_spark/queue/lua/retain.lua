-- Set or read the retention of a queue, and delete some messages beyond its limits.
-- KEYS metadata messages msgid toack acks clock bytes
-- ARGV rule most
--      rule: age_s:messages:bytes, 0 for no limit | end (nothing is kept any more) | '' (the rule
--      stays)
-- Result {status, rule, waiting, kept, dropped, more}. status: ok | missing (no such queue) | taken
--        (a reliable consumer has taken messages from its head and has not acknowledged them:
--        nothing is done). rule: the one that holds now, '' for none. waiting: messages that some
--        reader has still to acknowledge; kept: those that are acknowledged and stored. more 1:
--        call again with the rule ''. At most `most` messages are dropped a call.
-- @include even_if_full
-- @include let_go
-- @include lowest
-- @include waiting
local rule, most = ARGV[1], tonumber(ARGV[2])
local metadata, messages, msgid, toack, acks, times, bytes = unpack(KEYS)
local stored = redis.call('HMGET', metadata, 'ttl', 'retain')
local ttl, now = tonumber(stored[1] or nil), stored[2]
if not ttl then return {'missing'} end
local last = tonumber(redis.call('GET', msgid) or 0)
if rule == 'end' and not now then rule = '' end
if rule ~= '' and rule ~= now then
  -- who may not ask for the time cannot set an age
  if string.match(rule, '^[1-9]') then redis.call('TIME') end
  if rule ~= 'end' and redis.call('EXISTS', toack) == 1 then return {'taken'} end
  even_if_full(metadata, ttl)
  local oldest = tonumber(redis.call('LINDEX', messages, 0) or nil)
  local floor = string.format('%.0f', oldest and oldest - 1 or last)
  if not now then -- a mirror may store what its readers have acknowledged
    local low = lowest(acks, math.huge)
    redis.call('HSET', metadata, 'done', low < math.huge
        and string.format('%.0f', math.max(floor, math.min(low, last))) or floor)
  end
  redis.call('HSET', metadata, 'retain', rule, 'lets', '0:' .. floor)
  if string.match(rule, ':0$') then
    redis.call('HDEL', metadata, 'bytes')
    redis.call('DEL', bytes)
  end
  now = rule
end
if not now then return {'ok', '', waiting(metadata, messages), 0, 0, 0} end
even_if_full(metadata, ttl)
local q = {metadata = metadata, messages = messages, acks = acks, clock = times, bytes = bytes,
    ttl = ttl, retain = now}
local wait, length = waiting(metadata, messages, now), redis.call('LLEN', messages) / 2
local dropped, more = let_go(q, last, most)
return {'ok', redis.call('HGET', metadata, 'retain') or '', wait, length - wait - dropped, dropped,
    more and 1 or 0}
