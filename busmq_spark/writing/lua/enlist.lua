-- Note that a run of a sink stages rows for queues.
-- KEYS queues
-- ARGV run ttl_s queue...
-- Result 1
-- @include even_if_full
even_if_full(KEYS[1], ARGV[2])
for i = 3, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], ARGV[1]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
