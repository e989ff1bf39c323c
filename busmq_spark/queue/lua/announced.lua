-- Store that another bus has a queue. A queue of this bus is not changed (compat: npm busmq
-- overwrites it, protocol Q5).
-- KEYS metadata
-- ARGV source ttl_s
-- Result 1 when it is stored, 0 when the queue is one of this bus
if redis.call('HEXISTS', KEYS[1], 'ttl') == 1 then return 0 end
redis.call('HSET', KEYS[1], 'source', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
