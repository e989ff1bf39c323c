-- Delete stored messages up to an id; messages pushed after it stay, also when the call arrives
-- late.
-- KEYS messages
-- ARGV last most
-- Result how many were deleted; `most` when there may be more
-- @include find
local last = tonumber(ARGV[1])
local count = redis.call('LLEN', KEYS[1]) / 2
if count > 0 and tonumber(redis.call('LINDEX', KEYS[1], -2)) <= last then
  redis.call('UNLINK', KEYS[1]) -- freed beside Redis' main thread, however many there are
  return 0
end
local deleted = math.min(find(KEYS[1], last) + 1, tonumber(ARGV[2]))
if deleted > 0 then redis.call('LTRIM', KEYS[1], 2 * deleted, -1) end
return deleted
