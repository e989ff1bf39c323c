-- The last id that existed before the second of a time. Writes nothing.
-- KEYS metadata messages clock
-- ARGV time in milliseconds since 1970; below 0: so long before now
-- Result {id, first, last, now, asked}: id is -1 where it is not known, since messages of before
--        the first known time may be stored. first and last are the first and the last known time,
--        0 when none is; now is 0 for a user without the right to TIME; asked is the time.
-- @include before
local clock = redis.pcall('TIME')
local now, asked = clock[1] and clock[1] * 1000 + math.floor(clock[2] / 1000) or 0,
    tonumber(ARGV[1])
if asked < 0 then asked = math.max(0, now + asked) end
local last, newest = string.match(redis.call('HGET', KEYS[1], 'clock') or '', '^(%d+):(%d+)$')
local head = last and redis.call('LRANGE', KEYS[3], 0, 1) or {}
local first, id = head[1] or last or 0, -1
local second = math.floor(asked / 1000) * 1000
if last and tonumber(last) < second then
  id = tonumber(newest)
elseif last then
  local count = before(KEYS[3], 0, second)
  local oldest = redis.call('LINDEX', KEYS[2], 0)
  local least = tonumber(head[2] or newest)
  if count > 0 then
    id = tonumber(redis.call('LINDEX', KEYS[3], 2 * count - 1))
  elseif not oldest or tonumber(oldest) > least then
    id = least
  end
end
return {string.format('%.0f', id), tostring(first), last or '0', string.format('%.0f', now),
    string.format('%.0f', asked)}
