-- Read what follows an id, or a position, without removing anything.
-- KEYS messages msgid [metadata]
-- ARGV last index most most_bytes (last 0: from position index on)
-- A last above the newest id is of an earlier incarnation of the queue: then from the head.
-- Result flat pairs id, value. Stops after the message that reaches most_bytes. With the key
--        metadata {born, last id given, mark of the message last ('': not stored), pairs}.
-- @include find
-- @include mark
-- @include run
local last, at = tonumber(ARGV[1]), tonumber(ARGV[2])
local given, exact = redis.call('GET', KEYS[2]) or '0', false
if last > tonumber(given) then last, at = 0, 0 end
if last > 0 then
  at, exact = find(KEYS[1], last)
  at = at + 1
end
local pairs = run(KEYS[1], at, tonumber(ARGV[3]), tonumber(ARGV[4]))
if not KEYS[3] then return pairs end
return {redis.call('HGET', KEYS[3], 'born') or '', given, exact
    and mark(redis.call('LINDEX', KEYS[1], 2 * at - 1)) or '', pairs}
