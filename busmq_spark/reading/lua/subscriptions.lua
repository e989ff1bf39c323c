-- The subscriptions of a queue and when each was last in use. Writes nothing.
-- KEYS acks
-- Result {seconds since 1970 by the server's clock (0: no right to it), field, value, field, value
--        …}: a subscription and its last acked id, `:at:` before it and when it was last in use,
--        `:born` and the incarnation.
local now = redis.pcall('TIME')
local found = redis.call('HGETALL', KEYS[1])
table.insert(found, 1, now[1] or '0')
return found
