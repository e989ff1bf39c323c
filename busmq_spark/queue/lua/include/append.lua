-- Functions that all appending scripts share. Their KEYS begin with metadata messages msgid toack,
-- and from KEYS[at] on they have clock acks bytes, or nothing there where no times are noted;
-- ARGV[1] is the channel of the notification.
-- opened() -> stored, room: what append must know of the queue, and how many messages it has room
-- for. nil where there is no such queue, an error reply of a mirror.
-- append(stored, at, values, from, count) -> new: appends so many messages, at least one, of which
-- values[from] is the first. Where ids are used up, the reply is an error and nothing is done.
-- drop(stored, at, new): deletes messages beyond the retention limits and beyond the cap. It may
-- empty the list of messages, so it comes last.
-- @include clock
-- @include sizes
-- @include waiting
local function opened()
  local stored = redis.call('HMGET', KEYS[1], 'ttl', 'maxsize', 'sizes', 'clock', 'mirror_of',
      'retain', 'cap')
  if not tonumber(stored[1] or nil) then return nil end
  if stored[5] then return redis.error_reply('BUSMQ_QUEUE_IS_MIRROR ' .. KEYS[1]) end
  local maxsize = tonumber(stored[2] or nil) or 0
  return stored, maxsize > 0 and maxsize - waiting(KEYS[1], KEYS[2], stored[6]) or math.huge
end

local function append(stored, at, values, from, count)
  local last = redis.call('INCRBY', KEYS[3], count)
  if last > 9007199254740991 then
    redis.call('INCRBY', KEYS[3], -count)
    return redis.error_reply('BUSMQ_MAX_ID ids are used up')
  end
  local first, pairs = last - count + 1, {}
  for i = 1, count do
    -- Redis writes a whole number of up to 53 bits with all its digits
    pairs[2 * i - 1] = first + i - 1
    pairs[2 * i] = values[from + i - 1]
  end
  redis.call('RPUSH', KEYS[2], unpack(pairs))
  local noted, bytes = sizes(stored[3], first, last, values, from)
  local ttl = string.format('%.0f', stored[1]) -- once: Redis before 7 takes long to write a number
  local times = KEYS[at] and clock(KEYS[2], KEYS[at], stored[4], first, last, ttl, stored[6])
  if times then
    redis.call('HSET', KEYS[1], 'sizes', noted, 'clock', times) else redis.call('HSET', KEYS[1],
        'sizes', noted)
  end
  for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ttl) end
  redis.call('PUBLISH', ARGV[1], string.format('%.0f', last))
  return {first = first, last = last, bytes = bytes, times = times}
end

local function drop(stored, at, new)
  local acks, retain, cap = KEYS[at + 1], stored[6], stored[7]
  if not new.times or not (cap or retain) then return end
  local lets, known, second = false, false, string.sub(new.times, 1, 10)
  if retain then lets, known = unpack(redis.call('HMGET', KEYS[1], 'lets', 'bytes')) end
  local due = retain and (known or string.sub(lets or '', 1, 10) ~= second)
  if not (cap or due) then return end
  -- @include let_go
  -- `:drop` where also those go that a reader has not acknowledged
  local most, how = string.match(cap or '', '^(%d+)(:?%a*)$')
  local over = most and redis.call('LLEN', KEYS[2]) / 2 - most or 0
  if over > 0 and how == '' then
    over = math.min(over, find(KEYS[2], lowest(acks, new.last)) + 1)
  end
  -- it never empties the list
  if over > 0 then redis.call('LTRIM', KEYS[2], 2 * math.min(over, 2000), -1) end
  if due then
    local q = {metadata = KEYS[1], messages = KEYS[2], acks = acks, clock = KEYS[at],
        bytes = KEYS[at + 2], ttl = tonumber(stored[1]), retain = retain}
    keep(q, lets, known, second, new.last, new.first, new.bytes)
  end
end
