-- How many messages of a queue some reader has still to acknowledge, and what it keeps beside them. Writes nothing.
-- KEYS metadata messages
-- ARGV
-- Result {waiting, kept, rule}: see retain
-- @include waiting
local rule = redis.call('HGET', KEYS[1], 'retain')
local wait = waiting(KEYS[1], KEYS[2], rule)
return {wait, redis.call('LLEN', KEYS[2]) / 2 - wait, rule or ''}
