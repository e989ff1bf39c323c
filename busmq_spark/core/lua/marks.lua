-- Fingerprints of stored messages. Writes nothing.
-- KEYS messages, for each queue
-- ARGV for each queue the id
-- Result for each queue the fingerprint, '' when that id is not stored
-- @include find
-- @include mark
local found = {}
for i = 1, #KEYS do
  local index, exact = find(KEYS[i], tonumber(ARGV[i]))
  found[i] = exact and mark(redis.call('LINDEX', KEYS[i], 2 * index + 1)) or ''
end
return found
