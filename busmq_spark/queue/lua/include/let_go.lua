-- let_go(q, last, most, first, bytes) -> dropped, more: of a queue that keeps what is acknowledged,
-- drops what it keeps no longer; more says whether another call has something to do. q: its keys
-- metadata, messages, acks, clock and bytes, its ttl and its rule, the field `retain`. last: the id
-- given last. first, bytes: this call has appended first..last, so many bytes. At most `most`
-- messages are dropped. It may empty the list of messages, so no later command may use that key.
-- retain = age_s:messages:bytes, 0 for no limit: messages beyond one of them are deleted. Or `end`:
-- nothing is kept any more, and the fields go with the last message that was.
-- done: everything up to this id has been acknowledged by all readers there were. A reader that
-- goes back, or comes later, does not lower it: those messages wait for it alone, and count as
-- kept.
-- lets = second:id: everything up to this id is beyond the age, number or size, as of that second
-- of the server's clock; in the rest of it nothing is looked at again (looked_at), unless more is
-- to go: then second is 0. So in most calls a reader or producer notes where it is, and that is
-- all.
-- bytes = total:id:listed: the messages up to this id have so many bytes, from when counting began;
-- the list of that name has such pairs (total id total id ...), one for each thousandth of the
-- limit, the last of them at the total listed. An appending script counts its messages; messages of
-- npm clients are counted here, 1 MB or 1,000 of them a call, over all its queues.
-- @include before
-- @include find
-- @include lowest
-- @include note
-- @include run
local function looked_at(lets, now)
  return now and string.sub(lets or '', 1, 10) == now
end

-- budget of this call: messages of peers, and their bytes, still to be measured
local few, room = 1000, 1048576

local function weigh(q, noted, last, first, bytes)
  local limit = tonumber(string.match(q.retain, ':(%d+)$') or 0)
  if limit == 0 then return 0, last, 0 end
  local total, id, listed = string.match(noted or '', '^(%d+):(%d+):(%d+)$')
  total, id, listed = tonumber(total or 0), tonumber(id or 0), tonumber(listed or 0)
  if id == last then return total, id, limit end
  local totals = {}
  local function add(size, upto)
    total, id = total + size, tonumber(upto)
    if total - listed >= limit / 1000 then
      listed, totals[#totals + 1], totals[#totals + 2] = total, string.format('%.0f', total),
          string.format('%.0f', id)
    end
  end
  if noted and first and id == first - 1 then
    add(bytes, last)
  else
    local oldest = tonumber(redis.call('LINDEX', q.messages, 0) or nil)
    id = oldest and math.min(math.max(id, oldest - 1), last) or last
    if not noted then totals = {'0', string.format('%.0f', id)} end
    local some = id < last and few > 0 and run(q.messages, find(q.messages, id) + 1, few, room)
        or {}
    if #some == 0 and few > 0 then id = last end
    for i = 1, #some, 2 do
      add(#some[i + 1], some[i])
      few, room = few - 1, room - #some[i + 1]
    end
    if room <= 0 then few = 0 end
  end
  redis.call('HSET', q.metadata, 'bytes', string.format('%.0f:%.0f:%.0f', total, id, listed))
  if #totals > 0 then
    redis.call('RPUSH', q.bytes, unpack(totals))
    -- of a life that ended; never empty: a slot may be moving
    if not noted then redis.call('LTRIM', q.bytes, -#totals, -1) end
    redis.call('EXPIRE', q.bytes, math.max(q.ttl, 3600)) -- as include/clock.lua does
  end
  return total, id, limit
end

-- Return the greatest id beyond any of the limits.
local function beyond(q, now, noted, last, total, limit)
  local age, count = string.match(q.retain, '^(%d+):(%d+):%d+$')
  if not age then return 0 end
  local bound = math.max(0, count ~= '0' and last - count or 0)
  if tonumber(string.match(noted or '', ':(%d+)$')) ~= last then
    noted = note(q.metadata, q.messages, q.clock, noted, last, q.ttl, q.retain)
  end
  if age ~= '0' and now then
    local cut = (now - age) * 1000
    local ms, newest = string.match(noted, '^(%d+):(%d+)$')
    local old = before(q.clock, 0, cut + 1)
    if ms and tonumber(ms) <= cut then
      bound = math.max(bound, tonumber(newest))
    elseif old > 0 then
      bound = math.max(bound, tonumber(redis.call('LINDEX', q.clock, 2 * old - 1)))
    end
  end
  local gone = limit > 0 and before(q.bytes, 0, total - limit + 1) or 0
  if gone > 0 then
    bound = math.max(bound, tonumber(redis.call('LINDEX', q.bytes, 2 * gone - 1)))
    redis.call('LTRIM', q.bytes, 2 * gone - 2, -1)
  end
  return math.min(bound, last)
end

local function let_go(q, last, most, first, bytes)
  local known = redis.call('HMGET', q.metadata, 'done', 'lets', 'bytes', 'clock')
  local done, bound = tonumber(known[1] or nil) or 0,
      tonumber(string.match(known[2] or '', ':(%d+)$') or 0)
  local oldest = tonumber(redis.call('LINDEX', q.messages, 0) or nil)
  if done > last then -- ids have begun again
    done, bound = oldest and oldest - 1 or last, 0
    redis.call('HSET', q.metadata, 'done', string.format('%.0f', done))
  end
  local total, counted, limit = weigh(q, known[3], last, first, bytes)
  local now = redis.pcall('TIME')[1]
  bound = q.retain == 'end' and done or math.max(bound <= last and bound or 0,
      beyond(q, now, known[4], last, total, limit))
  local upto, dropped, left = math.min(bound, done), 0, 0
  if oldest and oldest <= upto then
    upto = lowest(q.acks, upto)
    left = find(q.messages, upto) + 1
    dropped = math.min(left, most)
    left = left - dropped
  end
  local more = left > 0 or counted < last
  if q.retain == 'end' and left == 0 and upto >= done then
    redis.call('HDEL', q.metadata, 'retain', 'done', 'lets', 'bytes')
    redis.call('DEL', q.bytes)
  elseif q.retain ~= 'end' then
    redis.call('HSET', q.metadata, 'lets', string.format('%s:%.0f', more and '0' or now or '0',
        bound))
  end
  if dropped > 0 then redis.call('LTRIM', q.messages, 2 * dropped, -1) end
  return dropped, more
end

-- Called after an append.
local function keep(q, lets, noted, now, last, first, bytes)
  if q.retain ~= 'end' and looked_at(lets, now) then
    weigh(q, noted, last, first, bytes) else let_go(q, last, 2000, first, bytes)
  end
end
