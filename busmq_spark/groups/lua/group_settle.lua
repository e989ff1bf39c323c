-- Settle messages of a shared group, and drop from the queue what every subscription and group has
-- acked.
-- KEYS metadata messages acks group due tries runs msgid clock bytes
-- ARGV name born most ttl_s again, then parts: token leased_ms action ms runs (id count) ..., so
--      many runs of consecutive ids
--      again 1: this call may have been executed before, and its reply was lost. leased_ms: when
--      the token leased, in ms since 1970
--      action: ack | retry (may be leased again in ms) | extend (its lease ends in ms) | release
--      (may be leased again in ms; this try does not count)
-- Result {status, letters}: one letter for each message, in one text: d done, l its lease is
--        another's now, s it was settled before; with again: by this token, and l where it was
--        settled by another. status: ok | no_group (the group is of another life of the queue, or
--        there is none).
-- Who settled a message that was leased more than once is noted in tries, for the last messages:
-- by<id modulo 10,000> -> id:token.
-- At most `most` messages are dropped a call; the rest with the next. due, tries, runs:
-- include/leases.lua.
-- @include even_if_full
-- @include find
-- @include leases
-- @include let_go
-- @include lowest
-- @include seen
local name, most = ARGV[1], tonumber(ARGV[3])
local metadata, messages, acks, group, due, tries, runs, msgid, times, bytes = unpack(KEYS)
local known = redis.call('HMGET', metadata, 'ttl', 'born', 'retain', 'done', 'lets')
local set = redis.call('HMGET', group, 'born', 'newest', 'wide', 'next', 'since')
if set[1] ~= ARGV[2] or known[2] ~= ARGV[2] then return {'no_group'} end
local lasting = math.max(tonumber(known[1]) or 0, tonumber(ARGV[4]))
even_if_full(group, lasting)
local newest, wide = counted(group, runs, set[2], set[3], set[4])
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local results, acked, settlers, book = {}, {}, {}, leases(due, tries, runs)

local function settler(id) return string.format('by%.0f', id % 10000) end

-- Settles messages of a lease of the caller.
local function settle(lease, first, last, action, ms)
  local given_back = (action == 'extend' or action == 'release') and book.score(lease) < 0
  if given_back then return action == 'release' and 'd' or 'l' end
  local piece = book.cut(lease, first, last)
  if action == 'ack' then
    book.drop(piece)
    acked[first] = last
    for id = first, piece.try > 1 and last or 0 do
      settlers[#settlers + 1], settlers[#settlers + 2] = settler(id),
          string.format('%.0f:%s', id, lease.token)
    end
  elseif action == 'extend' then
    piece.score = now + ms
  else
    -- At once: some ms behind 1970, so that it is due also when the clock is set back. The oldest
    -- message comes first.
    piece.score = -(ms > 0 and now + ms or math.min(piece.id, now))
    if action == 'release' then piece.try = piece.try - 1 end
  end
  return 'd'
end

-- Returns the letter of a message without a lease, for a caller that repeats its call.
local function settled_before(id, token, leased_ms)
  -- the group was set back, or made anew, after this lease
  if id > newest or leased_ms < (tonumber(set[5] or nil) or 0) then return 'l' end
  local its_id, its_token = string.match(redis.call('HGET', tries, settler(id)) or '',
      '^(%d+):(.*)$')
  return tonumber(its_id or nil) == id and its_token ~= token and 'l' or 's'
end

local function settle_run(first, last, token, leased_ms, action, ms)
  local id = first
  while id <= last do
    local lease, upto, result = book.of(id, wide), id, 's'
    if id == first and last > first and (not lease or lease.last < last) then
      book.between(first + 1, last)
    end
    if lease then
      upto = math.min(last, lease.last)
      result = lease.token == token and settle(lease, id, upto, action, ms) or 'l'
    else
      while upto < last and not book.begins(upto + 1, last) do upto = upto + 1 end
    end
    if result == 's' and ARGV[5] == '1' then
      for each = id, upto do results[#results + 1] = settled_before(each, token, leased_ms) end
    else
      results[#results + 1] = string.rep(result, upto - id + 1)
    end
    id = upto + 1
  end
end

local at = 6
while ARGV[at] do
  local token, leased_ms, action, ms, names = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2],
      tonumber(ARGV[at + 3]), {}
  local from, behind = at + 5, at + 5 + 2 * ARGV[at + 4]
  for i = from, behind - 1, 2 do names[#names + 1] = ARGV[i] end
  book.read(names)
  for i = from, behind - 1, 2 do
    local first = tonumber(ARGV[i])
    settle_run(first, first + ARGV[i + 1] - 1, token, leased_ms, action, ms)
  end
  at = behind
end
for from = 1, #settlers, 1000 do
  redis.call('HSET', tries, unpack(settlers, from, math.min(from + 999, #settlers)))
end
local gone, wider = book.save()
if wider ~= 0 then redis.call('HSET', group, 'wide', wide + wider) end

-- The low-water mark: everything up to it is settled, or was taken from the queue by others. The
-- message after it begins a lease, unless others have taken the first messages of that lease.
local low = tonumber(redis.call('HGET', acks, name) or 0)
if redis.call('ZCARD', due) == gone then
  low = math.max(low, newest)
else
  local oldest = tonumber(redis.call('LINDEX', messages, 0) or nil)
  if oldest then low = math.max(low, math.min(newest, oldest - 1)) end
  local open = low < newest and not acked[low + 1] and book.of(low + 1, wide)
  for _ = 1, 1000 do -- as many as one call settles at most
    if open or low >= newest or not acked[low + 1] and book.begins(low + 1, newest) then break end
    low = acked[low + 1] or low + 1
  end
end
redis.call('HSET', acks, name, string.format('%.0f', low), ':born', ARGV[2], ':shared:' .. name, 1)
local second = seen(acks, name)
for _, i in ipairs({3, 5, 6, 7}) do redis.call('EXPIRE', KEYS[i], lasting) end
if known[3] then
  local q = {metadata = metadata, messages = messages, acks = acks, clock = times, bytes = bytes,
      ttl = tonumber(known[1]), retain = known[3]}
  local all = lowest(acks, low)
  if all > (tonumber(known[4] or nil) or 0) then
    redis.call('HSET', metadata, 'done', string.format('%.0f', all))
  end
  if known[3] == 'end' or not looked_at(known[5], second) then
    let_go(q, tonumber(redis.call('GET', msgid) or 0), most)
  end
else
  local dropped = math.min(find(messages, lowest(acks, low)) + 1, most)
  if dropped > 0 then redis.call('LTRIM', messages, 2 * dropped, -1) end
end
book.close()
return {'ok', table.concat(results)}
