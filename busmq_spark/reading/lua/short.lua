-- The first messages of an id range, in one look at the queue. Writes nothing.
-- KEYS metadata messages
-- ARGV first last most_bytes deep
-- Result {incarnation ('' when missing), id, value, id, value …}: messages from first on whose
--        values come to most_bytes at most. No pairs when first is not stored, when it is over
--        most_bytes alone, or when deep messages lie before it: Redis walks there for every look,
--        and this takes several.
-- @include find
-- @include run
local first, last, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {redis.call('HGET', KEYS[1], 'born') or ''}
local head = tonumber(redis.call('LINDEX', KEYS[2], 0) or first + 1)
if first < head or first - head >= tonumber(ARGV[4]) then return found end
local index, exact = find(KEYS[2], first)
if not exact then return found end
local bytes = 0
local pairs_ = run(KEYS[2], index, last - first + 1, most)
for i = 1, #pairs_ - 1, 2 do
  bytes = bytes + #pairs_[i + 1]
  if bytes > most then break end
  found[#found + 1], found[#found + 2] = pairs_[i], pairs_[i + 1]
end
return found
