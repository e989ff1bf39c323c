-- Take messages from the head; with the key toack they are also recorded there until acked
-- (protocol 1.4).
-- KEYS messages [toack]
-- ARGV most most_bytes ttl_s
-- Result flat pairs id, value; empty when there is nothing. Stops after the message that reaches
--        most_bytes.
local most, room, taken = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
-- Not one more than there are: while a slot moves, a script that uses a key again that it has
-- emptied fails half way.
for _ = 1, math.min(most, math.floor(redis.call('LLEN', KEYS[1]) / 2)) do
  local pair = redis.call('LPOP', KEYS[1], 2)
  if not pair or #pair < 2 then break end
  taken[#taken + 1] = pair[1]
  taken[#taken + 1] = pair[2]
  room = room - #pair[2]
  if room <= 0 then break end
end
if KEYS[2] and #taken > 0 then
  redis.call('RPUSH', KEYS[2], unpack(taken))
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return taken
