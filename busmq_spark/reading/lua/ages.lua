-- For how long messages have been there, by the clocks of their queues. Writes nothing.
-- KEYS metadata clock, for each queue
-- ARGV an id for each queue
-- Result for each queue the milliseconds since its message was there at the latest; -1 where that
--        is not known, also for a user without the right to TIME.
-- @include before
local now, ages = redis.pcall('TIME'), {}
for q = 1, #KEYS / 2 do
  local id, times = tonumber(ARGV[q]), KEYS[2 * q]
  local ms, newest = string.match(redis.call('HGET', KEYS[2 * q - 1], 'clock') or '',
      '^(%d+):(%d+)$')
  local count = ms and now[1] and before(times, 1, id) or 0
  ages[q] = -1
  if count > 0 then
    local at = redis.call('LINDEX', times, 2 * count) or tonumber(newest) >= id and ms
    if at then ages[q] = math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - at) end
  end
end
return ages
