-- Append the messages of a sender in order, except those that were appended before: the
-- exactly-once push of an outbox. In all else it is push.lua.
-- KEYS metadata messages msgid toack senders [clock acks bytes]
-- ARGV available sender keep_s (sequence count value...)...
--      sequence: the number of the first of count messages, each of which has the next one
-- Result {first id, how many of those offered are there now, from the first of them on}; fewer than
--        offered when maxsize is reached; {0, -1} when the queue does not exist.
-- A field of senders is `sequence:s`: the last message of that sender which was appended, and when,
-- in seconds since 1970 (0: without the right to TIME). A sender numbers its messages upwards, not
-- always by one: a number up to its last one was appended, also when it comes late from a
-- connection that was given up. With each new sender a few others are looked at, and those go that
-- sent nothing for keep_s; the key lives as long.
-- @include append
local stored, room = opened()
if not stored then return {0, -1} end
if stored.err then return stored end
local argv, values, count, done, upto = ARGV, {}, 0, 0, nil
local progress = redis.call('HGET', KEYS[5], argv[2])
-- the number of the sender's last message that was appended
local appended = tonumber(string.match(progress or '0:0', '^%d+'))
local at, full = 4, false
while at < #argv and not full do
  local sequence, offered = tonumber(argv[at]), tonumber(argv[at + 1])
  local known = math.min(offered, math.max(0, appended - sequence + 1))
  local fitting = math.max(0, math.min(offered - known, room - count))
  full, at = known + fitting < offered, at + 2
  for i = 0, fitting - 1 do values[count + 1 + i] = argv[at + known + i] end
  if fitting > 0 then upto = sequence + known + fitting - 1 end
  count, done, at = count + fitting, done + known + fitting, at + offered
end
if count == 0 then return {0, done} end
local new = append(stored, 6, values, 1, count)
if new.err then return new end
local now = redis.pcall('TIME')
local s = tonumber(now[1] or 0)
if not progress and s > 0 then
  local some = redis.pcall('HRANDFIELD', KEYS[5], 8, 'WITHVALUES') -- none without the right to it
  for i = 1, #some, 2 do
    local at = tonumber(string.match(some[i + 1], ':(%d+)$'))
    if at and at > 0 and at < s - tonumber(argv[3]) then redis.call('HDEL', KEYS[5], some[i]) end
  end
end
redis.call('HSET', KEYS[5], argv[2], string.format('%.0f:%.0f', upto, s))
redis.call('EXPIRE', KEYS[5], argv[3])
drop(stored, 6, new)
return {new.first, done}
