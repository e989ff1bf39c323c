-- Cumulative ack of what a reliable consumer took, and on request the return of the rest to the
-- head of the queue (protocol 1.4).
-- KEYS toack [messages]
-- ARGV last ttl_s most
-- Result how many were acked. With the key messages the rest is restored, once everything up to
--        last is acked.
-- At most `most` are acked and restored a call, so that Redis is not held; a result of `most`
-- means: call again.
-- @include find
local last, most = tonumber(ARGV[1]), tonumber(ARGV[3])
local acked = math.min(find(KEYS[1], last) + 1, most)
local left = redis.call('LLEN', KEYS[1]) - 2 * acked
redis.call('EXPIRE', KEYS[1], ARGV[2])
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so toack
-- is not read once it may be gone.
if acked > 0 then redis.call('LTRIM', KEYS[1], 2 * acked, -1) end
if acked == most or not KEYS[2] then return acked end
if left > 0 and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('RENAME', KEYS[1], KEYS[2])
  left = 0
elseif left > 0 then
  -- from the newest on: what is still to come belongs before them
  local moved, room, step = 0, 4194304, 1
  while left > 0 and moved < most - acked and room > 0 do
    local some, longest = redis.call('RPOP', KEYS[1],
        2 * math.min(step, left / 2, most - acked - moved)), 1
    redis.call('LPUSH', KEYS[2], unpack(some))
    for i = 1, #some, 2 do room, longest = room - #some[i], math.max(longest, #some[i]) end
    left, moved = left - #some, moved + #some / 2
    step = math.max(1, math.min(64, math.floor(room / (4 * longest))))
  end
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
return left > 0 and most or acked
