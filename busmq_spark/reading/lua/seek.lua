-- Find an id in a list whose ids may have holes. Writes nothing.
-- KEYS messages
-- ARGV id
-- Result {position of the last message whose id is <= id (-1: none), 1 if it has the id, the id
--        after it ('' at the end)}
-- @include find
local index, exact = find(KEYS[1], tonumber(ARGV[1]))
return {index, exact and 1 or 0, redis.call('LINDEX', KEYS[1], 2 * (index + 1)) or ''}
