-- Become the reader of a queue.
-- KEYS lease
-- ARGV token lease_ms dead (a holder that the caller knows to be dead, or '')
-- Result the holder afterwards: the token when it worked.
-- @include even_if_full
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[3] then return holder end
even_if_full(KEYS[1], 1)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
