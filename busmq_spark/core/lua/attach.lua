-- KEYS metadata messages msgid toack acks sinks clock
-- ARGV ttl_s maxsize discover born create long_ttl_s
-- Result {existed 0|1, ttl, maxsize, born}; {-1} when the queue is missing and create is not 1.
-- An existing queue keeps its own ttl and maxsize (protocol 1.5). A stub of federation has no ttl and is created over; so is a ttl that no
-- EXPIRE could take, or that would delete the queue at once.
-- @include even_if_full
local ttl = tonumber(redis.call('HGET', KEYS[1], 'ttl') or nil)
local existed = 1
if not ttl or ttl < 1 then
  if ARGV[5] ~= '1' then return {-1} end
  existed, ttl = 0, tonumber(ARGV[1])
end
even_if_full(KEYS[1], ttl)
if existed == 0 then
  redis.call('HSET', KEYS[1], 'ttl', ARGV[1], 'source', 'local', 'discover', ARGV[3], 'maxsize', ARGV[2])
end
redis.call('HSETNX', KEYS[1], 'born', ARGV[4])
local born = redis.call('HGET', KEYS[1], 'born')
local acks_of = redis.call('HGET', KEYS[5], ':born')
if acks_of and acks_of ~= born then redis.call('DEL', KEYS[5]) end
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ttl) end
local long = math.max(ttl, tonumber(ARGV[6]))
redis.call('EXPIRE', KEYS[5], long)
redis.call('EXPIRE', KEYS[6], long)
redis.call('EXPIRE', KEYS[7], math.max(ttl, 3600)) -- as include/clock.lua does
return {existed, ttl, tonumber(redis.call('HGET', KEYS[1], 'maxsize') or 0) or 0, born}
