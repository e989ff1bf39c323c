-- Move the acked id of a subscription or group that nobody holds.
-- KEYS acks lease [group due tries runs]: with the last four, of a shared group
-- ARGV subscription id born long_ttl_s dead (a holder of the lease that is known to be dead; '' for
--      none)
-- Result ok | missing (no such subscription in this life of the queue) | busy | the token of the
--        holder, and nothing is done.
-- @include even_if_full
-- @include seen
local acks, name, id = KEYS[1], ARGV[1], ARGV[2]
local stored, holder = redis.call('HMGET', acks, name, ':born'), redis.call('GET', KEYS[2])
if not stored[1] or stored[2] ~= ARGV[3] then return 'missing' end
if holder and holder ~= ARGV[5] then return holder end
if KEYS[3] then
  local clock = redis.call('TIME')
  local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
  if redis.call('ZCOUNT', KEYS[4], '(' .. now, '+inf') > 0 then return 'busy' end
  even_if_full(KEYS[3], ARGV[4])
  redis.call('HSET', KEYS[3], 'newest', id, 'wide', 0, 'since', now)
  redis.call('HDEL', KEYS[3], 'next')
  redis.call('DEL', KEYS[4], KEYS[5], KEYS[6])
end
even_if_full(acks, ARGV[4])
redis.call('HSET', acks, name, id)
seen(acks, name)
return 'ok'
