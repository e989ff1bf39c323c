-- Append messages in order, except those whose origin was appended before: the exactly-once sink of
-- real-time mode. In all else it is push.lua.
-- KEYS metadata messages msgid toack sinks clock acks bytes
-- ARGV available query long_ttl_s (origin count (id index value)...)...
--      origin: the born of the queue that count messages come from, id and index: which message of
--      it, and which of the rows made of that one
-- Result {first id, how many are there now, from the first of them on}; fewer than offered when
--        maxsize is reached; {0, -1} when the queue does not exist.
-- A field `query;origin` of sinks has id and index of the last message of an origin that was
-- appended. The messages of an origin come in the order of id and index, also from a task that was
-- given up and still writes: a message up to the last one was appended.
-- @include append
local stored, room = opened()
if not stored then return {0, -1} end
if stored.err then return stored end
local argv, values, marks, at, done, full = ARGV, {}, {}, 4, 0, false
while at < #argv and not full do
  local field, count = argv[2] .. ';' .. argv[at], tonumber(argv[at + 1])
  local id, index = string.match(marks[field] or redis.call('HGET', KEYS[5], field) or '0:0',
      '^(%d+):(%d+)$')
  id, index, at = tonumber(id), tonumber(index), at + 2
  local before = #values
  for place = at, at + 3 * count - 3, 3 do
    local its_id, its_index = tonumber(argv[place]), tonumber(argv[place + 1])
    if its_id > id or its_id == id and its_index > index then
      full = #values >= room
      if full then break end
      values[#values + 1], id, index = argv[place + 2], its_id, its_index
    end
    done = done + 1
  end
  if #values > before then marks[field] = string.format('%.0f:%d', id, index) end
  at = at + 3 * count
end
if #values == 0 then return {0, done} end
local new = append(stored, 6, values, 1, #values)
if new.err then return new end
for field, mark in next, marks do redis.call('HSET', KEYS[5], field, mark) end
redis.call('EXPIRE', KEYS[5], math.max(tonumber(stored[1]), tonumber(argv[3])))
drop(stored, 6, new)
return {new.first, done}
