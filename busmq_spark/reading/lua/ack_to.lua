-- Acknowledge everything up to an id for one subscription, and drop what every subscription has
-- acked; for several queues. A queue that keeps what is acknowledged drops what it keeps no longer.
-- KEYS metadata messages msgid acks clock bytes, for each queue
-- ARGV subscription most long_ttl_s, then for each queue id born mark, at last the token of the
--      reader, or nothing
-- With a token, the field :by:<subscription> of acks notes the last id that each of the last eight
-- tokens has acked: <id>:<token>,...
-- Result for each queue {status, detail}: ok n | more n (n messages dropped; more: call again) |
--        missing | recreated born | older last | reissued mark
-- At most `most` messages are dropped a call, over all its queues. The message at id is compared
-- with its fingerprint while it is still stored: a Redis that lost its tail in a failover and gave
-- the same ids to other messages is caught before one of them is dropped.
-- @include even_if_full
-- @include find
-- @include let_go
-- @include lowest
-- @include mark
-- @include seen
-- @include stored
local sub, most, long_ttl_s, token = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]),
    ARGV[4 + #KEYS / 2]

local function note_token(acks, id_text)
  local kept, ending = {id_text .. ':' .. token}, ':' .. token
  for each in string.gmatch(redis.call('HGET', acks, ':by:' .. sub) or '', '[^,]+') do
    if #kept < 8 and string.sub(each, -#ending) ~= ending then kept[#kept + 1] = each end
  end
  redis.call('HSET', acks, ':by:' .. sub, table.concat(kept, ','))
end

local function ack(metadata, messages, msgid, acks, times, bytes, id_text, born, expected)
  local id = tonumber(id_text)
  local known = redis.call('HMGET', metadata, 'ttl', 'born', 'acked', 'retain', 'done', 'lets')
  if not known[1] then return {'missing', ''} end
  if known[2] ~= born then return {'recreated', known[2] or ''} end
  local last = redis.call('GET', msgid) or '0'
  if tonumber(last) < id then return {'older', last} end
  local index, value
  if expected ~= '' then
    value, index = stored(messages, id, tonumber(redis.call('LINDEX', messages, 0) or id + 1))
    local found = value and mark(value) or expected
    if found ~= expected then return {'reissued', found} end
  end
  local now
  if sub ~= '' then
    local acked, lasting = redis.call('HGET', acks, sub),
        math.max(tonumber(known[1]) or 0, long_ttl_s)
    even_if_full(acks, lasting)
    -- the first one registers the subscription, also at 0: else another's ack would drop what it
    -- has not read
    if not acked or tonumber(acked) < id then
      redis.call('HSET', acks, sub, id_text, ':born', born)
      now = seen(acks, sub)
      if token then note_token(acks, id_text) end
      if not acked then redis.call('EXPIRE', acks, lasting) end -- it may be new
    end
  elseif (tonumber(known[3] or nil) or 0) < id then
    even_if_full(metadata, tonumber(known[1]))
    -- names the cause when an older checkpoint comes back
    redis.call('HSET', metadata, 'acked', id_text)
  end
  local low = lowest(acks, id)
  if known[4] then
    if sub == '' then even_if_full(metadata, tonumber(known[1])) end
    if low > (tonumber(known[5] or nil) or 0) then
      redis.call('HSET', metadata, 'done', string.format('%.0f', low))
    end
    if known[4] ~= 'end' and looked_at(known[6], now or redis.pcall('TIME')[1]) then
      return {'ok', 0}
    end
    local q = {metadata = metadata, messages = messages, acks = acks, clock = times, bytes = bytes,
        ttl = tonumber(known[1]), retain = known[4]}
    local dropped, more = let_go(q, tonumber(last), most)
    most = most - dropped
    return {more and 'more' or 'ok', dropped}
  end
  if low < id or not index then index = find(messages, low) end
  local dropped = math.min(index + 1, most)
  if dropped > 0 then redis.call('LTRIM', messages, 2 * dropped, -1) end
  most = most - dropped
  return {index + 1 > dropped and 'more' or 'ok', dropped}
end

local results = {}
for i = 1, #KEYS / 6 do
  local k, a = 6 * (i - 1), 3 * i
  results[i] = ack(KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5], KEYS[k + 6],
      ARGV[a + 1], ARGV[a + 2], ARGV[a + 3])
end
return results
