-- Count the messages of a queue that some reader has not acknowledged, and the kept ones beside
-- them. Writes nothing.
-- KEYS metadata messages
-- ARGV
-- Result {waiting, kept, rule}: see retain
-- @include waiting
local rule = redis.call('HGET', KEYS[1], 'retain')
local wait = waiting(KEYS[1], KEYS[2], rule)
return {wait, redis.call('LLEN', KEYS[2]) / 2 - wait, rule or ''}
