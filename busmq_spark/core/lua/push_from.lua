-- Append the messages of a sender in order, but for those that were appended before: what an outbox forwards, exactly once. As push.lua otherwise.
-- KEYS metadata messages msgid toack senders [clock acks bytes]
-- ARGV available sender keep_s (sequence count value...)...
--      sequence: the number of the first of count messages, each of which has the next one
-- Result {first id, how many of those offered are there now, from the first of them on}; fewer than offered when maxsize is reached; {0, -1} when the
-- queue does not exist.
-- A field of senders is `sequence:s`: the last message of that sender which was appended, and when, in seconds since 1970 (0: without the right to
-- TIME). A sender numbers its messages upwards, not always by one: whatever is not behind its last one was appended, also when it comes late from a
-- connection that was given up. With each new sender a few others are looked at, and those go that sent nothing for keep_s; the key lives as long.
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
local argv, values, done, upto = ARGV, {}, 0, nil
local before = redis.call('HGET', KEYS[5], argv[2])
local mark = tonumber(string.match(before or '0:0', '^%d+'))
local room = maxsize > 0 and maxsize - waiting(KEYS[1], KEYS[2], stored[6]) or #argv
local at, full = 4, false
while at < #argv and not full do
  local sequence, count = tonumber(argv[at]), tonumber(argv[at + 1])
  local known = math.min(count, math.max(0, mark - sequence + 1))
  done, at = done + known, at + 2
  for place = at + known, at + count - 1 do
    full = #values >= room
    if full then break end
    values[#values + 1], upto, done = argv[place], sequence + (place - at), done + 1
  end
  at = at + count
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
local noted, bytes = sizes(stored[3], first, last, values, 1)
local fields = {'sizes', noted}
if KEYS[6] then fields[3], fields[4] = 'clock', clock(KEYS[2], KEYS[6], stored[4], first, last, ttl, stored[6]) end
redis.call('HSET', KEYS[1], unpack(fields))
local now = redis.pcall('TIME')
local s = tonumber(now[1] or 0)
if not before and s > 0 then
  local some = redis.pcall('HRANDFIELD', KEYS[5], 8, 'WITHVALUES') -- none without the right to it
  for i = 1, #some, 2 do
    local at = tonumber(string.match(some[i + 1], ':(%d+)$'))
    if at and at > 0 and at < s - tonumber(argv[3]) then redis.call('HDEL', KEYS[5], some[i]) end
  end
end
redis.call('HSET', KEYS[5], argv[2], string.format('%.0f:%.0f', upto, s))
redis.call('EXPIRE', KEYS[5], argv[3])
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ttl) end
redis.call('PUBLISH', argv[1], string.format('%.0f', last))
if stored[9] and KEYS[6] then cap(KEYS[2], KEYS[7], stored[9], last) end
if stored[6] and KEYS[6] and (stored[8] or not looked_at(stored[7], string.sub(fields[4], 1, 10))) then
  local q = {metadata = KEYS[1], messages = KEYS[2], acks = KEYS[7], clock = KEYS[6], bytes = KEYS[8], ttl = ttl, retain = stored[6]}
  keep(q, stored[7], stored[8], string.sub(fields[4], 1, 10), last, first, bytes)
end
return {first, done}
