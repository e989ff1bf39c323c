-- let_go(q, last, low, most, first, bytes) -> dropped, more: of a queue that keeps what is acknowledged, drops what it keeps no longer; more says whether
-- another call has something to do. q: its keys metadata, messages, acks, clock and bytes, its ttl and its rule, the field `retain`. last: the id given
-- last. low: everything up to it has just been acknowledged by all readers (nil: nothing was). first, bytes: this call has appended first..last, so
-- many bytes. At most `most` messages are dropped. It may empty the list of messages, so nothing may use that key behind it. Needs before, clock, find,
-- lowest, note and run.
-- retain = age_s:messages:bytes, 0 for no limit: what is older, more or larger goes. Or `end`: nothing is kept any more, and the fields go with the last
-- message that was.
-- done: everything up to this id has been acknowledged by all readers there were. A reader that goes back, or comes later, does not lower it: those
-- messages wait for it alone, and count as kept.
-- lets = second:id: everything up to this id is older, more or larger, as of that second of the server's clock.
-- bytes = total:id: the messages up to this id have so many bytes, from when counting began; the list of that name has such pairs (total id total id ...),
-- one for each thousandth of the limit. Who appends counts; messages of peers are counted here, 1 MB or 1,000 of them a call.
local function weigh(q, noted, limit, last, first, bytes)
  local total, id = string.match(noted or '', '^(%d+):(%d+)$')
  total, id = tonumber(total or 0), tonumber(id or 0)
  if id == last then return total, id end
  local oldest = tonumber(redis.call('LINDEX', q.messages, 0) or nil)
  id = oldest and math.min(math.max(id, oldest - 1), last) or last
  local listed, totals = noted and tonumber(redis.call('LINDEX', q.bytes, -2) or nil) or 0, noted and {} or {'0', string.format('%.0f', id)}
  local function add(size, upto)
    total, id = total + size, tonumber(upto)
    if total - listed >= limit / 1000 then
      listed, totals[#totals + 1], totals[#totals + 2] = total, string.format('%.0f', total), string.format('%.0f', id)
    end
  end
  if first and id == first - 1 then
    add(bytes, last)
  elseif id < last then
    local some = run(q.messages, find(q.messages, id) + 1, 1000, 1048576)
    for i = 1, #some, 2 do add(#some[i + 1], some[i]) end
    if #some == 0 then id = last end
  end
  redis.call('HSET', q.metadata, 'bytes', string.format('%.0f:%.0f', total, id))
  if #totals > 0 then redis.call('RPUSH', q.bytes, unpack(totals)) end
  if not noted then redis.call('LTRIM', q.bytes, -#totals, -1) end -- of a life that ended; never empty: a slot may be moving
  redis.call('EXPIRE', q.bytes, math.max(q.ttl, 3600)) -- as include/clock.lua does
  return total, id
end

local function let_go(q, last, low, most, first, bytes)
  local known = redis.call('HMGET', q.metadata, 'done', 'lets', 'bytes', 'clock')
  local done, second, bound = tonumber(known[1] or nil) or 0, string.match(known[2] or '', '^(%d+):(%d+)$')
  bound = tonumber(bound or 0)
  local oldest = tonumber(redis.call('LINDEX', q.messages, 0) or nil)
  if done > last then done = oldest and oldest - 1 or last end -- ids have begun again
  if done ~= tonumber(known[1] or nil) or low and low > done then
    done = math.max(done, low or 0)
    redis.call('HSET', q.metadata, 'done', string.format('%.0f', done))
  end
  local age, count, limit = string.match(q.retain, '^(%d+):(%d+):(%d+)$')
  local total, counted = 0, last
  if limit and limit ~= '0' then total, counted = weigh(q, known[3], tonumber(limit), last, first, bytes) end
  if q.retain == 'end' then
    bound = done
  elseif age then
    local now = redis.pcall('TIME')[1]
    if now ~= second or not now or bound > last then
      if bound > last then bound = 0 end
      local noted = known[4] or ''
      if tonumber(string.match(noted, ':(%d+)$')) ~= last then noted = note(q.metadata, q.messages, q.clock, known[4], last, q.ttl, q.retain) end
      if age ~= '0' and now then
        local cut = (now - age) * 1000
        local newest_ms, newest = string.match(noted, '^(%d+):(%d+)$')
        local old = before(q.clock, 0, cut + 1)
        if newest_ms and tonumber(newest_ms) <= cut then
          bound = math.max(bound, tonumber(newest))
        elseif old > 0 then
          bound = math.max(bound, tonumber(redis.call('LINDEX', q.clock, 2 * old - 1)))
        end
      end
      if count ~= '0' then bound = math.max(bound, last - count) end
      if limit ~= '0' then
        local gone = before(q.bytes, 0, total - limit + 1)
        if gone > 0 then
          bound = math.max(bound, tonumber(redis.call('LINDEX', q.bytes, 2 * gone - 1)))
          redis.call('LTRIM', q.bytes, 2 * gone - 2, -1)
        end
      end
      bound = math.min(bound, last)
      redis.call('HSET', q.metadata, 'lets', string.format('%s:%.0f', now or '0', bound))
    end
  end
  local upto, dropped, left = math.min(bound, done), 0, 0
  if oldest and oldest <= upto then
    upto = lowest(q.acks, upto)
    left = find(q.messages, upto) + 1
    dropped = math.min(left, most)
    left = left - dropped
    if dropped > 0 then redis.call('LTRIM', q.messages, 2 * dropped, -1) end
  end
  if q.retain == 'end' and left == 0 and upto >= done then
    redis.call('HDEL', q.metadata, 'retain', 'done', 'lets', 'bytes')
    redis.call('DEL', q.bytes)
  end
  return dropped, left > 0 or counted < last
end
