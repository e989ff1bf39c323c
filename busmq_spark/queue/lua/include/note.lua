-- note(metadata, messages, times, noted, last, ttl_s): notes that the newest id is last, where the
-- clock does not know it yet: for messages of peers, which note nothing. noted: the field `clock`.
-- Result what the field holds now.
-- @include clock
local function note(metadata, messages, times, noted, last, ttl_s, retain)
  local id = tonumber(string.match(noted or '', ':(%d+)$'))
  local found = clock(messages, times, noted, math.min(id or last, last) + 1, last, ttl_s, retain)
  if found ~= '' then redis.call('HSET', metadata, 'clock', found) end
  return found
end
