-- Take messages from the head into a record, so that a reply that was lost can be had again (protocol 1.4 POP, in batches).
-- KEYS messages record
-- ARGV after most most_bytes ttl_s drop
-- after: the id the consumer received last (0: none). What the record holds behind it was taken and never arrived: that comes first.
-- drop 1: the record is the consumer's own, and what it has received leaves it. 0: the record is toack, where messages stay until acked.
-- Result flat pairs id, value; empty when there is nothing.
local after, most, room, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local size = redis.call('LLEN', KEYS[2])
if size > 0 and redis.call('LINDEX', KEYS[2], -2) ~= after then
  local at = size
  while at > 0 and redis.call('LINDEX', KEYS[2], at - 2) ~= after do at = at - 2 end
  redis.call('EXPIRE', KEYS[2], ttl)
  return redis.call('LRANGE', KEYS[2], at, -1)
end
if size > 0 and ARGV[5] == '1' then redis.call('DEL', KEYS[2]) end
local taken, step = {}, 1
while #taken < 2 * most and room > 0 do
  local some = redis.call('LPOP', KEYS[1], 2 * math.min(step, most - #taken / 2))
  if not some or #some < 2 then break end
  local longest = 1
  for i = 1, #some, 2 do
    taken[#taken + 1], taken[#taken + 2] = some[i], some[i + 1]
    room, longest = room - #some[i + 1], math.max(longest, #some[i + 1])
  end
  step = math.max(1, math.min(64, math.floor(room / (4 * longest))))
end
if #taken > 0 then
  redis.call('RPUSH', KEYS[2], unpack(taken))
  redis.call('EXPIRE', KEYS[2], ttl)
end
return taken
