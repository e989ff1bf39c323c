-- Whose some staged lists of a queue are, among the peers of a federation server; and note those
-- that a peer is about to stage.
-- KEYS stages (hash attempt -> owner, of one secret)
-- ARGV owner most ttl_s prefix attempt...
--      most: how many lists the secret may have when another is noted (0: none is noted);
--      prefix: what keys of staged lists of the queue begin with
-- Result for each attempt 1 it is the owner's; 0 there is no such list; -1 another has staged
-- it; -2 the secret has its share. Of lists that are no more
-- the names are forgotten where it has.
local owner, most, results = ARGV[1], tonumber(ARGV[2]), {}

local function is_full()
  if redis.call('HLEN', KEYS[1]) < most then return false end
  for _, attempt in ipairs(redis.call('HKEYS', KEYS[1])) do
    if redis.call('EXISTS', ARGV[4] .. attempt) == 0 then redis.call('HDEL', KEYS[1], attempt) end
  end
  return redis.call('HLEN', KEYS[1]) >= most
end

redis.call('EXPIRE', KEYS[1], ARGV[3])
for i = 5, #ARGV do
  local noted = redis.call('HGET', KEYS[1], ARGV[i])
  if noted == owner then
    results[i - 4] = 1
  elseif noted or redis.call('EXISTS', ARGV[4] .. ARGV[i]) == 1 then
    results[i - 4] = -1
  elseif most == 0 then
    results[i - 4] = 0
  elseif is_full() then
    results[i - 4] = -2
  else
    redis.call('HSET', KEYS[1], ARGV[i], owner)
    redis.call('EXPIRE', KEYS[1], ARGV[3])
    results[i - 4] = 1
  end
end
return results
