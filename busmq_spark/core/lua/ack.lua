-- Cumulative ack of what a reliable consumer took, and on request the return of the rest to the head of the queue (protocol 1.4).
-- KEYS toack [messages]
-- ARGV last ttl_s most
-- Result how many were acked. With the key messages the rest is restored, once everything up to last is acked.
-- At most `most` are acked a call, so that Redis is not held; a result of `most` means: call again.
-- @include find
local last, most = tonumber(ARGV[1]), tonumber(ARGV[3])
local acked = math.min(find(KEYS[1], last) + 1, most)
local left = redis.call('LLEN', KEYS[1]) - 2 * acked
redis.call('EXPIRE', KEYS[1], ARGV[2])
-- While a slot moves, a script that comes back to a key it has emptied dies half way: so nothing asks for toack once it may be gone.
if acked > 0 then redis.call('LTRIM', KEYS[1], 2 * acked, -1) end
if acked == most or not KEYS[2] then return acked end
if left > 0 and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('RENAME', KEYS[1], KEYS[2])
else
  while left > 0 do
    local count = math.min(left, 4000)
    redis.call('LPUSH', KEYS[2], unpack(redis.call('RPOP', KEYS[1], count)))
    left = left - count
  end
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
return acked
