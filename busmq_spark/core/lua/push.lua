-- Append messages in order. One or many: the effects are those of busmq's push (protocol 1.4), the notification comes once per call.
-- KEYS metadata messages msgid toack [clock acks bytes]
-- ARGV available message...
-- Result {first id, how many were stored}; fewer than offered when maxsize is reached; {0, -1} when the queue does not exist.
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
local count = #ARGV - 1
if maxsize > 0 then count = math.min(count, maxsize - waiting(KEYS[1], KEYS[2], stored[6])) end
if count <= 0 then return {0, 0} end
if tonumber(redis.call('GET', KEYS[3]) or 0) + count > 9007199254740991 then return redis.error_reply('BUSMQ_MAX_ID ids are used up') end
local last = redis.call('INCRBY', KEYS[3], count)
local first, pairs, argv = last - count + 1, {}, ARGV
for i = 1, count do
  pairs[2 * i - 1] = first + i - 1 -- Redis writes a whole number of up to 53 bits with all its digits
  pairs[2 * i] = argv[i + 1]
end
redis.call('RPUSH', KEYS[2], unpack(pairs))
local noted, bytes = sizes(stored[3], first, last, argv, 2)
local fields = {'sizes', noted}
if KEYS[5] then fields[3], fields[4] = 'clock', clock(KEYS[2], KEYS[5], stored[4], first, last, ttl, stored[6]) end
redis.call('HSET', KEYS[1], unpack(fields))
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ttl) end
redis.call('PUBLISH', ARGV[1], string.format('%.0f', last))
if stored[9] and KEYS[5] then cap(KEYS[2], KEYS[6], stored[9], last) end
if stored[6] and KEYS[5] and (stored[8] or not looked_at(stored[7], string.sub(fields[4], 1, 10))) then
  local q = {metadata = KEYS[1], messages = KEYS[2], acks = KEYS[6], clock = KEYS[5], bytes = KEYS[7], ttl = ttl, retain = stored[6]}
  keep(q, stored[7], stored[8], string.sub(fields[4], 1, 10), last, first, bytes)
end
return {first, count}
