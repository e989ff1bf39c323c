-- Acknowledge everything up to an id for one subscription, and drop what every subscription has acked.
-- KEYS metadata messages msgid acks
-- ARGV id born mark subscription most long_ttl_s
-- Result {status, detail}: ok n | more n (n messages dropped; more: call again) | missing | recreated born | older last | reissued mark
-- The message at id is compared with its fingerprint while it is still stored: a Redis that lost its tail in a failover and gave the same ids
-- to other messages is caught before one of them is dropped.
-- @include find
-- @include mark
local id, born, sub = tonumber(ARGV[1]), ARGV[2], ARGV[4]
local stored = redis.call('HMGET', KEYS[1], 'ttl', 'born')
if not stored[1] then return {'missing', ''} end
if stored[2] ~= born then return {'recreated', stored[2] or ''} end
local last = redis.call('GET', KEYS[3]) or '0'
if tonumber(last) < id then return {'older', last} end
local index, exact = find(KEYS[2], id)
if exact and ARGV[3] ~= '' then
  local found = mark(redis.call('LINDEX', KEYS[2], 2 * index + 1))
  if found ~= ARGV[3] then return {'reissued', found} end
end
local low = id
if sub ~= '' then
  local acked = tonumber(redis.call('HGET', KEYS[4], sub) or 0)
  if acked < id then redis.call('HSET', KEYS[4], sub, ARGV[1], ':born', born) end
  redis.call('EXPIRE', KEYS[4], math.max(tonumber(stored[1]) or 0, tonumber(ARGV[6])))
end
local others = redis.call('HGETALL', KEYS[4])
for i = 1, #others, 2 do
  if others[i] ~= ':born' then low = math.min(low, tonumber(others[i + 1])) end
end
if low < id then index = find(KEYS[2], low) end
local most = tonumber(ARGV[5])
local dropped = math.min(index + 1, most)
if dropped > 0 then redis.call('LTRIM', KEYS[2], 2 * dropped, -1) end
return {index + 1 > most and 'more' or 'ok', dropped}
