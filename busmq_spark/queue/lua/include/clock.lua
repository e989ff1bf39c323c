-- clock(messages, times, noted, first, last, ttl_s, retain) -> text: the new value of the field
-- `clock` of the metadata, after the newest id became last; the ids first..last are new.
-- The field is `ms:id`: at that time of this server, in milliseconds since 1970, the newest id was
-- id. It is overwritten within a second; when the next second begins, its pair goes to the end of
-- the list times (ms id ms id ...; both only grow), which so gets at most one pair a second.
-- The field ends with its life of the queue, since it is in the metadata; then, or where ids began
-- again, the list begins anew with a pair that says what was there before. A clock that is set back
-- stands still until it has caught up. A user without the right to TIME notes nothing.
-- Pairs that no stored message needs go, some at each call: the last one before the oldest stored
-- id is kept, as are the last 86400. Of a queue that keeps what is acknowledged (retain, as
-- include/let_go.lua has it) the last 604800 are, and where that is for longer than 7 days, pairs
-- are as far apart as so many of them require.
local function clock(messages, times, noted, first, last, ttl_s, retain)
  local now = redis.pcall('TIME')
  if not now[1] then return noted or '' end
  -- as for most pushes
  if noted and string.sub(noted, 1, 10) == now[1] then
    return string.format('%s%03d:%.0f', now[1], now[2] / 1000, last)
  end
  local ms = string.format('%s%03d', now[1], now[2] / 1000)
  local at, id = string.match(noted or '', '^(%d+):(%d+)$')
  local before = redis.call('LINDEX', times, -1)
  local fresh = not at or tonumber(id) >= first or before and tonumber(before) > tonumber(id)
  if fresh then at, id = tonumber(ms) - 1, first - 1 end
  if fresh or tonumber(ms) > tonumber(at) then
    local most, age = retain and 604800 or 86400, tonumber(string.match(retain or '', '^%d+') or 0)
    if not fresh and age > most and (at - tonumber(redis.call('LINDEX', times, -2)
        or 0)) * 604.8 < age then
      return ms .. string.format(':%.0f', last)
    end
    local length = redis.call('RPUSH', times, at, id)
    -- never empty: a slot may be moving (take.lua)
    if fresh or length > 2 * most then redis.call('LTRIM', times, fresh and -2 or 2, -1) end
    local oldest = tonumber(redis.call('LINDEX', messages, 0) or nil) or last + 1
    local head, gone = redis.call('LRANGE', times, 0, 63), 0
    while tonumber(head[2 * gone + 4] or nil) and tonumber(head[2 * gone + 4]) < oldest do
      gone = gone + 1
    end
    if gone > 0 then redis.call('LTRIM', times, 2 * gone, -1) end
    -- an hour at least: peers that keep a queue of 30 s alive do not touch this key
    redis.call('EXPIRE', times, math.max(ttl_s, 3600))
    at = ms
  end
  return at .. string.format(':%.0f', last)
end
