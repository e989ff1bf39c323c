-- Append a chunk to a staged list, once: one that is there already, since its reply was lost, is not appended again.
-- KEYS stage
-- ARGV before ttl_s value...
--      before: how many rows of the list precede the chunk
-- Result how many rows the list has now; fewer than before when it was lost
-- A list that lives for longer than ttl_s is complete, and shorter with every commit. A chunk that comes so late that the length is the right one
-- again must not shorten its life.
local rows = redis.call('LLEN', KEYS[1])
if rows == tonumber(ARGV[1]) and redis.call('TTL', KEYS[1]) <= tonumber(ARGV[2]) then
  rows = redis.call('RPUSH', KEYS[1], unpack(ARGV, 3))
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
return rows
