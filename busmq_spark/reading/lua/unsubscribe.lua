-- Remove a subscription that no query reads with, or a shared group.
-- KEYS acks lease group due tries runs owners
-- ARGV subscription dead (a holder of the lease that is known to be dead; '' for none)
-- Result 1 it is removed, 0 there was none; the token of the query that reads with it, and nothing
--        is done.
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[2] then return holder end
redis.call('DEL', KEYS[3], KEYS[4], KEYS[5], KEYS[6])
redis.call('HDEL', KEYS[7], ARGV[1], ':born:' .. ARGV[1]) -- the name has no owner any more
redis.call('HDEL', KEYS[1], ':at:' .. ARGV[1], ':by:' .. ARGV[1], ':shared:' .. ARGV[1],
    ':skip:' .. ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
