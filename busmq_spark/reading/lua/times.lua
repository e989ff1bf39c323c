-- Return the times of messages, as pairs of a clock. Writes nothing.
-- KEYS metadata clock
-- ARGV first last most (ids, both inclusive; most pairs)
-- Result {incarnation of the queue, flat pairs ms, id …}: from the last one before first, where
--        there is one, to the first one at or after last. An id came after the time of the last
--        pair before it, and at the latest at that of the next. Fewer where there are more than
--        most: ask again for the ids after the last pair.
-- @include before
local stored = redis.call('HMGET', KEYS[1], 'clock', 'born')
local born = stored[2] or ''
local noted_ms, noted_id = string.match(stored[1] or '', '^(%d+):(%d+)$')
if not noted_ms then return {born} end
local first, last = tonumber(ARGV[1]), tonumber(ARGV[2])
local earlier = before(KEYS[2], 1, first)
local from = math.max(0, earlier - 1)
local upto = math.min(first == last and earlier or before(KEYS[2], 1, last),
    from + tonumber(ARGV[3]) - 1)
local found = redis.call('LRANGE', KEYS[2], 2 * from, 2 * upto + 1)
local reached = tonumber(found[#found] or nil)
if #found < 2 * tonumber(ARGV[3]) and not (reached and reached >= last) then
  found[#found + 1], found[#found + 2] = noted_ms, noted_id
end
table.insert(found, 1, born)
return found
