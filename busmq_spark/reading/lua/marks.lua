-- Fingerprints of stored messages. Writes nothing.
-- KEYS messages, for each queue
-- ARGV for each queue the id
-- Result for each queue the fingerprint, '' when that id is not stored
-- @include stored
-- @include mark
local found = {}
for i = 1, #KEYS do
  local oldest = redis.call('LINDEX', KEYS[i], 0)
  local value = oldest and stored(KEYS[i], tonumber(ARGV[i]), tonumber(oldest))
  found[i] = value and mark(value) or ''
end
return found
