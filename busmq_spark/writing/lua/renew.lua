-- Renew the ttl of the lists that a run has staged for a queue.
-- KEYS stages
-- ARGV epoch prefix ttl_s
-- Result the number of lists. A list with a longer ttl is complete, and keeps its ttl.
local found, there = redis.call('HGETALL', KEYS[1]), 0
for i = 1, #found, 2 do
  if found[i + 1] == ARGV[1] then
    local list = ARGV[2] .. found[i]
    if redis.call('TTL', list) < tonumber(ARGV[3]) then
      there = there + redis.call('EXPIRE', list, ARGV[3]) else there = there + 1
    end
  end
end
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return there
