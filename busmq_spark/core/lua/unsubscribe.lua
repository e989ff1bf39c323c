-- Remove a subscription that no query reads with.
-- KEYS acks lease
-- ARGV subscription dead (a holder of the lease that is known to be dead; '' for none)
-- Result 1 it is removed, 0 there was none; the token of the query that reads with it, and nothing is done.
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[2] then return holder end
redis.call('HDEL', KEYS[1], ':at:' .. ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
