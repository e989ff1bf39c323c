-- Append dead letters in order, and note that a group wrote them. As push.lua otherwise.
-- KEYS metadata messages msgid toack letters [clock acks bytes]
-- ARGV available long_ttl_s letter...
-- Result {first id, how many were stored}; fewer than offered when maxsize is reached; {0, -1} when
--        the queue does not exist.
-- letters: a sorted set of runs of ids, `<born>:<first id>` with the last id as its score. `busmq
-- dead replay` trusts
-- the origin that a letter names only where its id is in a run of this life of the queue. Runs that
-- lie wholly below the oldest message go.
-- @include append
local stored, room = opened()
if not stored then return {0, -1} end
if stored.err then return stored end
local count = math.min(#ARGV - 2, room)
if count <= 0 then return {0, 0} end
local new = append(stored, 6, ARGV, 3, count)
if new.err then return new end
local letters, born = KEYS[5], redis.call('HGET', KEYS[1], 'born') or ''
local newest = redis.call('ZREVRANGE', letters, 0, 0, 'WITHSCORES')
local follows = newest[1] and tonumber(newest[2]) == new.first - 1
    and string.sub(newest[1], 1, #born + 1) == born .. ':'
local run = follows and newest[1] or string.format('%s:%.0f', born, new.first)
redis.call('ZADD', letters, string.format('%.0f', new.last), run)
local oldest = redis.call('LINDEX', KEYS[2], 0)
if oldest then redis.call('ZREMRANGEBYSCORE', letters, '-inf', '(' .. oldest) end
redis.call('EXPIRE', letters, math.max(tonumber(stored[1]), tonumber(ARGV[2])))
drop(stored, 6, new)
return {new.first, count}
