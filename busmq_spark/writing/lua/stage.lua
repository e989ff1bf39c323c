-- Append a chunk to a staged list, once: one that is there already, since its reply was lost, is
-- not appended again.
-- KEYS stage [stages]
-- ARGV before ttl_s attempt epoch value...
--      before: how many rows of the list precede the chunk; attempt and epoch: what to note in
--      stages, the hash of a sink's lists for this queue
-- Result how many rows the list has now; fewer than before when it was lost
-- A list with a longer ttl than ttl_s is complete, and gets shorter with every commit. A chunk that
-- arrives so late that the length fits again must not shorten its ttl.
local rows = redis.call('LLEN', KEYS[1])
if rows == tonumber(ARGV[1]) and redis.call('TTL', KEYS[1]) <= tonumber(ARGV[2]) then
  rows = redis.call('RPUSH', KEYS[1], unpack(ARGV, 5))
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  if KEYS[2] and ARGV[1] == '0' then
    redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
    if redis.call('TTL', KEYS[2]) < tonumber(ARGV[2]) then
      redis.call('EXPIRE', KEYS[2], ARGV[2])
    end
  end
end
return rows
