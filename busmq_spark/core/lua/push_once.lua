-- Append messages in order, but for those whose origin was appended before: the exactly-once sink of real-time mode. As push.lua otherwise.
-- KEYS metadata messages msgid toack sinks clock acks bytes
-- ARGV available query long_ttl_s (origin count (id index value)...)...
--      origin: the born of the queue that count messages come from, id and index: which message of it, and which of the rows made of that one
-- Result {first id, how many are there now, from the first of them on}; fewer than offered when maxsize is reached; {0, -1} when the queue does not
-- exist.
-- A field `query;origin` of sinks has id and index of the last message of an origin that was appended. Those of an origin come in the order of id and
-- index, also from a task that was given up and still writes: whatever is not behind the last one was appended.
-- @include before
-- @include clock
-- @include find
-- @include lowest
-- @include cap
-- @include note
-- @include run
-- @include let_go
-- @include sizes
-- @include waiting
local stored = redis.call('HMGET', KEYS[1], 'ttl', 'maxsize', 'sizes', 'clock', 'mirror_of', 'retain', 'lets', 'bytes', 'cap')
local ttl, maxsize = tonumber(stored[1] or nil), tonumber(stored[2] or nil) or 0
if not ttl then return {0, -1} end
if stored[5] then return redis.error_reply('BUSMQ_QUEUE_IS_MIRROR ' .. KEYS[1]) end
local room = maxsize > 0 and maxsize - waiting(KEYS[1], KEYS[2], stored[6]) or #ARGV
local argv, values, marks, at, done, full = ARGV, {}, {}, 4, 0, false
while at < #argv and not full do
  local field, count = argv[2] .. ';' .. argv[at], tonumber(argv[at + 1])
  local id, index = string.match(marks[field] or redis.call('HGET', KEYS[5], field) or '0:0', '^(%d+):(%d+)$')
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
local count = #values
if count == 0 then return {0, done} end
if tonumber(redis.call('GET', KEYS[3]) or 0) + count > 9007199254740991 then return redis.error_reply('BUSMQ_MAX_ID ids are used up') end
local last = redis.call('INCRBY', KEYS[3], count)
local first, pairs = last - count + 1, {}
for i = 1, count do
  pairs[2 * i - 1] = first + i - 1
  pairs[2 * i] = values[i]
end
redis.call('RPUSH', KEYS[2], unpack(pairs))
local times = clock(KEYS[2], KEYS[6], stored[4], first, last, ttl, stored[6])
local noted, bytes = sizes(stored[3], first, last, values, 1)
redis.call('HSET', KEYS[1], 'sizes', noted, 'clock', times)
for field, mark in next, marks do redis.call('HSET', KEYS[5], field, mark) end
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ttl) end
redis.call('EXPIRE', KEYS[5], math.max(ttl, tonumber(argv[3])))
redis.call('PUBLISH', argv[1], string.format('%.0f', last))
if stored[9] then cap(KEYS[2], KEYS[7], stored[9], last) end
if stored[6] and (stored[8] or not looked_at(stored[7], string.sub(times, 1, 10))) then
  local q = {metadata = KEYS[1], messages = KEYS[2], acks = KEYS[7], clock = KEYS[6], bytes = KEYS[8], ttl = ttl, retain = stored[6]}
  keep(q, stored[7], stored[8], string.sub(times, 1, 10), last, first, bytes)
end
return {first, done}
