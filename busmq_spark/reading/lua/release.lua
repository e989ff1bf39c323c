-- Release a lease, if the caller still holds it.
-- KEYS lease
-- ARGV token
-- Result 1 when it was.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
