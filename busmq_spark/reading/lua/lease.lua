-- Become the reader of a queue.
-- KEYS lease [metadata messages msgid toack acks readers]
-- ARGV token lease_ms dead (a holder that the caller knows to be dead, or '') [field record hold
--      own]: as in include/announce.lua
-- Result the holder afterwards: the token when it worked.
-- @include even_if_full
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[3] then return holder end
even_if_full(KEYS[1], 1)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if KEYS[2] then
  -- @include announce
  local q = {metadata = KEYS[2], messages = KEYS[3], msgid = KEYS[4], toack = KEYS[5],
      acks = KEYS[6], readers = KEYS[7]}
  announce(q, ARGV[4], ARGV[5], ARGV[6], ARGV[7], holder ~= ARGV[1])
end
return ARGV[1]
