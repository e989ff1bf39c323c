-- Whether queues still have what a reader continues with: its life, the message it has read last,
-- if that is stored, and all that follow. This is the cheap check of the usual case; where it
-- fails, state.lua returns the details. Writes nothing.
-- KEYS metadata messages msgid, for each queue
-- ARGV for each queue born last mark upto: the position of the reader ('' no fingerprint), and the
--      id up to which it is likely to read next
-- Result for each queue two items: the id given last, and the fingerprint of the message with that
--        id or, if it is lower, upto ('' where that is not above the position). Both false where it
--        is not certain that all is there. In one flat list, as that of state.lua.
-- @include stored
-- @include mark
local function intact(metadata, messages, msgid, born, last, expected, upto)
  local known = redis.call('HMGET', metadata, 'ttl', 'born')
  if known[2] ~= born or (tonumber(known[1] or nil) or 0) <= 0 then return false, false end
  local given = redis.call('GET', msgid) or '0'
  upto = math.min(upto, tonumber(given) or -1)
  if upto < last then return false, false end
  local oldest = tonumber(redis.call('LINDEX', messages, 0) or nil)
  if not oldest then return upto == last and given, upto == last and '' end
  if oldest > last + 1 then return false, false end
  local value, index = stored(messages, upto, oldest)
  if upto > last and not value then return false, false end
  if oldest <= last and expected ~= '' then
    local before = value
    if upto > last and index == upto - oldest and index < 1000 then -- no holes up to there
      before = redis.call('LINDEX', messages, 2 * (last - oldest) + 1)
    elseif upto > last then
      before = stored(messages, last, oldest)
    end
    if not before or mark(before) ~= expected then return false, false end
  end
  return given, upto == last and '' or mark(value)
end
local found = {}
for i = 1, #KEYS / 3 do
  local k, a = 3 * i, 4 * i
  found[2 * i - 1], found[2 * i] = intact(KEYS[k - 2], KEYS[k - 1], KEYS[k], ARGV[a - 3],
      tonumber(ARGV[a - 2]), ARGV[a - 1], tonumber(ARGV[a]))
end
return found
