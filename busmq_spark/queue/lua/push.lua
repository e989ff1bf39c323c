-- Append messages in order. The effects are those of busmq's push (protocol 1.4), with one
-- notification per call.
-- KEYS metadata messages msgid toack [clock acks bytes]
-- ARGV available message...
-- Result {first id, how many were stored}; fewer than offered when maxsize is reached; {0, -1} when
--        the queue does not exist.
-- @include append
local stored, room = opened()
if not stored then return {0, -1} end
if stored.err then return stored end
local count = math.min(#ARGV - 1, room)
if count <= 0 then return {0, 0} end
local new = append(stored, 5, ARGV, 2, count)
if new.err then return new end
drop(stored, 5, new)
return {new.first, count}
