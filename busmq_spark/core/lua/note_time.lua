-- Note the time at which the newest id of queues was seen: for messages of peers, which note nothing.
-- KEYS metadata messages msgid clock, for each queue
-- Result for each queue 1 when its newest id was noted, 0 when it had been, -1 when there is no such queue
-- @include clock
local results = {}
for q = 1, #KEYS / 4 do
  local metadata, messages, msgid, times = KEYS[4 * q - 3], KEYS[4 * q - 2], KEYS[4 * q - 1], KEYS[4 * q]
  local stored = redis.call('HMGET', metadata, 'ttl', 'clock')
  local ttl, noted = tonumber(stored[1] or nil), stored[2]
  local last, id = tonumber(redis.call('GET', msgid) or 0), tonumber(string.match(noted or '', ':(%d+)$'))
  results[q] = not ttl and -1 or id == last and 0 or 1
  if results[q] == 1 then
    local found = clock(messages, times, noted, math.min(id or last, last) + 1, last, ttl)
    if found ~= '' then redis.call('HSET', metadata, 'clock', found) end
  end
end
return results
