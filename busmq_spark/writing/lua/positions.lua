-- Return the acked ids of the subscriptions of queues. Writes nothing.
-- KEYS acks, for each queue
-- Result for each queue all fields of its acks, field value field value ...
local found = {}
for i = 1, #KEYS do found[i] = redis.call('HGETALL', KEYS[i]) end
return found
