-- The readers of some queues: their positions, leases and records. Writes nothing.
-- KEYS metadata messages msgid toack acks readers lease (the one without a name), for each queue
-- ARGV most cursor (of the subscriptions of the first queue; '0' at first)
-- Result {now, cursor, queues, item...}. now: ms since 1970, 0 without the right to TIME. queues:
--        how many were looked at: a call ends with the queue that brings it to `most` readers.
--        cursor: above '0' the last of them has more subscriptions; call again with it as the first
--        queue. Items in one flat list, for each queue: the number of items after it, at 0 there is
--        nothing to report; newest id, floor (one before the oldest stored id), done, acked, toack
--        (the oldest taken id, or ''), holder of the lease without a name, number of subscriptions;
--        for each subscription name, acked id, when it was last in use (s), holder, '' or, of a
--        shared group, its newest leased id, paused (1 or ''), leases that have not ended; then for
--        each record field, value.
local clock, most, cursor = redis.pcall('TIME'), tonumber(ARGV[1]), ARGV[2]
local now = clock[1] and clock[1] * 1000 + math.floor(clock[2] / 1000) or 0
local ms = string.format('%.0f', now)
local out, queues = {ms, '0', 0}, #KEYS / 7

-- Some subscriptions and their acked ids; a field that begins with a colon is no subscription.
local function page(acks, from)
  local names, found = {}, {'0'}
  if from == '0' and redis.call('HLEN', acks) <= 500 then
    found[2] = redis.call('HGETALL', acks)
  else
    found = redis.call('HSCAN', acks, from, 'COUNT', 300)
  end
  local items = found[2]
  for i = 1, #items, 2 do
    if string.sub(items[i], 1, 1) ~= ':' then
      names[#names + 1], names[#names + 2] = items[i], items[i + 1]
    end
  end
  return found[1], names
end

local function add_subscription(acks, lease, name, last)
  local known = redis.call('HMGET', acks, ':at:' .. name, ':shared:' .. name)
  local newest, paused, open = '', '', 0
  if known[2] then
    local group = string.sub(acks, 1, -5) .. 'group:' .. name
    local set = redis.call('HMGET', group, 'newest', 'paused')
    newest, paused = set[1] or '0', set[2] or ''
    open = redis.call('ZCOUNT', group .. ':due', '(' .. ms, '+inf')
  end
  for _, item in ipairs({name, last, known[1] or '', redis.call('GET', lease .. name) or '',
      newest, paused, open}) do
    out[#out + 1] = item
  end
end

local function add_queue(at, from)
  local metadata, messages, msgid, toack, acks, readers, lease = unpack(KEYS, at + 1, at + 7)
  local start, known = #out + 1, redis.call('HMGET', metadata, 'ttl', 'done', 'acked')
  out[start] = 0
  if not known[1] then return '0', 0 end
  local last, oldest = redis.call('GET', msgid) or '0', redis.call('LINDEX', messages, 0)
  local following, names = page(acks, from)
  for _, item in ipairs({last, oldest and string.format('%.0f', tonumber(oldest) - 1) or last,
      known[2] or '', known[3] or '', redis.call('LINDEX', toack, 0) or '',
      redis.call('GET', lease) or '', #names / 2}) do
    out[#out + 1] = item
  end
  if #names == 0 and following == '0' and out[#out - 1] == '' and out[#out - 2] == ''
      and out[start + 1] == out[start + 2] and redis.call('EXISTS', readers) == 0 then
    for i = #out, start + 1, -1 do out[i] = nil end
    return '0', 0
  end
  for i = 1, #names, 2 do add_subscription(acks, lease, names[i], names[i + 1]) end
  local records = redis.pcall('HLEN', readers)
  if type(records) == 'number' and records > 0 and records <= 1000 then
    for _, item in ipairs(redis.call('HGETALL', readers)) do out[#out + 1] = item end
  else
    records = 0
  end
  out[start] = #out - start
  return following, #names / 2 + records
end

for i = 1, queues do
  local following, count = add_queue(7 * (i - 1), i == 1 and cursor or '0')
  most, out[2], out[3] = most - count, following, i
  if following ~= '0' or most <= 0 then break end
end
return out
