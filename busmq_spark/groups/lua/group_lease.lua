-- Lease messages of a shared group: those that are due again first (their lease has ended, or their
-- redelivery has come), then new ones.
-- KEYS metadata messages acks group due tries runs [msgid readers]
-- ARGV token most room ttl_s again lease_ms apart [field record hold]
--      token: names the messages of this call, unique for ever. again 1: a call with this token may
--      have been executed and its reply lost: the result is the messages that it leased, and no
--      others. lease_ms: the default for a group without its own. apart 1: each message has a lease
--      of its own, since each is
--      settled by itself: then that costs less, and leasing costs more. field, record, hold: of
--      the holder, as in include/announce.lua; it counts as present for the time of a lease, too
-- Result {status, now, wait, gone, {id, try, first, value, value ...} ...}. status: ok | paused |
--        missing (no such queue) | no_group (the group is of another life of the queue, or there is
--        none). now: ms since 1970. wait: ms until a message is due again, -1 when none will be.
--        gone: how many messages were taken from the queue by others before this group had settled
--        them. Then messages with consecutive ids: the id of the first of them, how often they were
--        leased, with this time, when first, in ms since 1970, and their values.
-- due, tries, runs: include/leases.lua.
-- @include even_if_full
-- @include find
-- @include run
-- @include leases
local token, most, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local metadata, messages, acks, group, due, tries, runs = unpack(KEYS, 1, 7)
local known = redis.call('HMGET', metadata, 'ttl', 'born')
if not known[1] then return {'missing'} end
local set = redis.call('HMGET', group, 'born', 'newest', 'wide', 'next', 'lease_ms', 'limit',
    'paused')
if set[1] ~= known[2] or not (set[2] or set[4]) then return {'no_group'} end
local lasting = math.max(tonumber(known[1]) or 0, tonumber(ARGV[4]))
even_if_full(group, lasting)
redis.call('EXPIRE', acks, lasting)
local newest, wide = counted(group, runs, set[2], set[3], set[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ms = string.format('%.0f', now)
local head = tonumber(redis.call('LINDEX', messages, 0) or nil)
local out, gone, book = {'ok', ms, -1, 0}, 0, leases(due, tries, runs)
local ends = now + tonumber(set[5] or ARGV[6])

-- Leases the first n messages of pairs, together. A lease ends at a hole in the ids.
local function lease(pairs, n, try, first)
  local at = 1
  while at <= n do
    local id, upto = tonumber(pairs[2 * at - 1]), n
    if ARGV[7] == '1' then
      upto = at
    elseif tonumber(pairs[2 * n - 1]) - id > n - at then
      upto = at
      while tonumber(pairs[2 * upto + 1]) == id + upto + 1 - at do upto = upto + 1 end
    end
    local some = {pairs[2 * at - 1], try, first}
    for i = at, upto do some[i - at + 4] = pairs[2 * i] end
    out[#out + 1] = some
    book.put({id = id, last = id + upto - at, try = try, token = token, first = first,
        score = ends})
    at = upto + 1
  end
end

-- Up to n messages that are stored, from this id on.
local function stored(id, n)
  local pairs = run(messages, math.max(0, id - head), n, room)
  if tonumber(pairs[1] or nil) == id then return pairs end
  return run(messages, find(messages, id - 1) + 1, n, room)
end

-- Leases messages of a lease once more, up to one of them: those that are still stored.
local function lease_anew(old, upto, same)
  local pairs, n = head and stored(old.id, upto - old.id + 1) or {}, 0
  while pairs[2 * n + 1] and tonumber(pairs[2 * n + 1]) <= upto do
    n = n + 1
    room = room - #pairs[2 * n]
  end
  if room <= 0 then upto = tonumber(pairs[2 * n - 1]) end
  gone = gone + upto - old.id + 1 - n
  local piece = book.cut(old, old.id, upto)
  book.drop(piece)
  lease(pairs, n, piece.try + (same and 0 or 1), piece.first == '0' and ms or piece.first)
end

-- Up to n messages of these leases. The result: how many are left of n.
local function lease_again(all, n, same)
  local some = {}
  for _, old in ipairs(all) do
    if n <= 0 then break end
    local upto = math.min(old.last, old.id + n - 1)
    some[#some + 1] = {old, upto}
    n = n - (upto - old.id + 1)
  end
  table.sort(some, function(a, b) return a[1].id < b[1].id end)
  for _, each in ipairs(some) do
    if room <= 0 then break end
    lease_anew(each[1], each[2], same)
  end
  return n
end

if ARGV[5] == '1' then
  local ours = {}
  -- not those that wait to be tried again, of which there may be very many
  for _, old in ipairs(book.named(redis.call('ZRANGEBYSCORE', due, 0, '+inf'))) do
    if old.token == token then ours[#ours + 1] = old end
  end
  lease_again(ours, math.huge, true)
elseif set[7] then
  out[1] = 'paused'
else
  local limit = tonumber(set[6]) or 0
  if limit > 0 then most = math.min(most, limit - book.in_flight(ms, wide, limit - most, limit)) end
  if most > 0 then
    local names = redis.call('ZRANGEBYSCORE', due, 0, ms, 'LIMIT', 0, most)
    if #names < most then
      for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', due, -1, '-' .. ms, 'LIMIT', 0,
          most - #names)) do
        names[#names + 1] = name
      end
    end
    local left = lease_again(book.named(names), most, false)
    if left > 0 and room > 0 and head then
      local pairs = stored(newest + 1, left)
      if pairs[1] then
        gone = gone + tonumber(pairs[1]) - newest - 1
        newest = tonumber(pairs[#pairs - 1])
        lease(pairs, #pairs / 2, 1, ms)
      end
    end
  end
end
local vanished, wider = book.save()
if #out > 4 or vanished > 0 then
  redis.call('HSET', group, 'newest', newest, 'wide', wide + wider)
end
for i = 5, 7 do redis.call('EXPIRE', KEYS[i], lasting) end
local lease_end = redis.call('ZRANGEBYSCORE', due, '(' .. ms, '+inf', 'WITHSCORES', 'LIMIT', 0,
    1)[2]
local later = redis.call('ZREVRANGEBYSCORE', due, '(-' .. ms, '-inf', 'WITHSCORES', 'LIMIT', 0,
    1)[2]
local next_due = math.min(tonumber(lease_end or nil) or math.huge, later and -tonumber(later)
    or math.huge)
if next_due < math.huge then out[3] = next_due - now end
out[4] = gone
book.close()
if ARGV[9] then
  -- @include announce
  local q = {metadata = metadata, messages = messages, msgid = KEYS[8], acks = acks,
      readers = KEYS[9]}
  announce(q, ARGV[8], ARGV[9], math.max(ARGV[10], tonumber(set[5] or ARGV[6])), newest)
end
return out
