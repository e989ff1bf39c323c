-- Read what follows an id, or a position, without removing anything.
-- KEYS messages msgid
-- ARGV last index most most_bytes (last 0: from position index on)
-- A last above the newest id is of an earlier incarnation of the queue: then from the head.
-- Result flat pairs id, value. Stops after the message that reaches most_bytes.
-- @include find
-- @include run
local last, at = tonumber(ARGV[1]), tonumber(ARGV[2])
if last > tonumber(redis.call('GET', KEYS[2]) or 0) then last, at = 0, 0 end
if last > 0 then at = find(KEYS[1], last) + 1 end
return run(KEYS[1], at, tonumber(ARGV[3]), tonumber(ARGV[4]))
