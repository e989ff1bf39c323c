-- KEYS metadata messages msgid toack acks sinks clock bytes
-- ARGV ttl_s maxsize discover born create long_ttl_s
-- Result {existed 0|1, ttl, maxsize, born, taken}; taken 1: the queue keeps what is acknowledged,
--        and a reader that is no group has taken messages from its head, as a consumer in Node
--        does; {-1} when the queue is missing and create is not 1.
-- An existing queue keeps its own ttl and maxsize (protocol 1.5). A stub of federation has no ttl
-- and is created over; so is a ttl that no EXPIRE could take, or that would delete the queue at
-- once.
-- @include even_if_full
local ttl = tonumber(redis.call('HGET', KEYS[1], 'ttl') or nil)
local existed = 1
if not ttl or ttl < 1 then
  if ARGV[5] ~= '1' then return {-1} end
  existed, ttl = 0, tonumber(ARGV[1])
end
even_if_full(KEYS[1], ttl)
if existed == 0 then
  redis.call('HSET', KEYS[1], 'ttl', ARGV[1], 'source', 'local', 'discover', ARGV[3], 'maxsize',
      ARGV[2])
end
redis.call('HSETNX', KEYS[1], 'born', ARGV[4])
local born = redis.call('HGET', KEYS[1], 'born')
local acks_of = redis.call('HGET', KEYS[5], ':born')
if acks_of and acks_of ~= born then redis.call('DEL', KEYS[5]) end
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ttl) end
local long = math.max(ttl, tonumber(ARGV[6]))
redis.call('EXPIRE', KEYS[5], long)
redis.call('EXPIRE', KEYS[6], long)
for i = 7, 8 do redis.call('EXPIRE', KEYS[i], math.max(ttl, 3600)) end -- as include/clock.lua does
local known, taken = redis.call('HMGET', KEYS[1], 'maxsize', 'retain', 'lets', 'cap'), 0
if known[2] and known[2] ~= 'end' and not known[4] then -- a cap drops what would be kept, too
  local oldest = tonumber(redis.call('LINDEX', KEYS[2], 0) or nil)
  local floor = oldest and oldest - 1 or tonumber(redis.call('GET', KEYS[3]) or 0)
  if floor > tonumber(string.match(known[3] or '', ':(%d+)$') or 0)
      or redis.call('EXISTS', KEYS[4]) == 1 then
    taken = 1
  end
end
return {existed, ttl, tonumber(known[1] or nil) or 0, born, taken}
