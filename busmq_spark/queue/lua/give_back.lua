-- Return messages to the head of the queue that were taken and never handed over. Ids stay, and so
-- does their order, also among messages that others gave back.
-- KEYS messages record [lease]
-- ARGV handed available ttl_s token most
-- handed: the id handed over last (0: none). Lease: see take. The taker's own record (`hand`) ends
-- here; a mark in it refuses packets that arrive later.
-- Result how many messages went back; -1 when the lease is not the taker's: then its holder
--        restores them.
-- At most `most` go back a call, the newest first, so that Redis is not held; a result of `most`
-- means: call again. Messages that others gave back before move with them, since a list takes
-- messages at its ends only: the ones up to our newest or, where that is fewer, the ones from our
-- oldest on. So one call moves as many as lie on the shorter side, 50,000 in some 0.2 s. Several
-- steps would not do: between two of them npm clients pop the head of the list, so each message
-- that no consumer holds must be in the list, in order. Messages that the caller held meanwhile
-- would be lost with the caller.
-- @include even_if_full
-- @include find
-- @include behind
local handed, ttl, most = ARGV[1], ARGV[3], tonumber(ARGV[5])
if KEYS[3] and redis.call('GET', KEYS[3]) ~= ARGV[4] then return -1 end
if redis.call('LINDEX', KEYS[2], -2) == 'ended' then return 0 end
even_if_full(KEYS[2], ttl)
local length = redis.call('LLEN', KEYS[2])
local keep = behind(KEYS[2], handed, most) or math.max(0, length - 2 * most)
local all = length > keep and redis.call('LRANGE', KEYS[2], keep, length - 1) or {}
local count = #all / 2
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so no key
-- is emptied before the last command on it.
local function end_record()
  if KEYS[3] or count == most then
    if count > 0 then
      redis.call('LTRIM', KEYS[2], keep == 0 and 1 or 0, keep == 0 and 0 or keep - 1)
    end
  else
    redis.call('RPUSH', KEYS[2], 'ended', '')
    redis.call('LTRIM', KEYS[2], -2, -1)
    redis.call('EXPIRE', KEYS[2], ttl)
  end
end
if count == 0 then
  end_record()
  return 0
end
-- Others may have given back messages that are older than some of ours.
local stored, older, newer = redis.call('LLEN', KEYS[1]), 0, 0
local head = redis.call('LINDEX', KEYS[1], 0)
if head and tonumber(head) < tonumber(all[#all - 1]) then
  older = 2 * (find(KEYS[1], tonumber(all[#all - 1])) + 1)
end
if older > 2 * most then newer = stored - 2 * (find(KEYS[1], tonumber(all[1])) + 1) end
local at_tail = older > 2 * most and newer < older
local moved = at_tail and newer or older
local start = at_tail and stored - moved or 0
local others = moved > 0 and redis.call('LRANGE', KEYS[1], start, start + moved - 1) or {}
local merged, at, from = {}, 1, 1
while at < moved or from < #all do
  local source, i = all, from
  if from > #all or (at < moved and tonumber(others[at]) < tonumber(all[from])) then
    source, i = others, at
  end
  if source == all then from = from + 2 else at = at + 2 end
  merged[#merged + 1], merged[#merged + 2] = source[i], source[i + 1]
end
local whole = moved > 0 and moved == stored
if at_tail then
  if moved > 0 then redis.call('LTRIM', KEYS[1], 0, start - 1) end
  for i = 1, #merged, 4000 do
    redis.call('RPUSH', KEYS[1], unpack(merged, i, math.min(i + 3999, #merged)))
  end
else
  if moved > 0 and not whole then redis.call('LTRIM', KEYS[1], moved, -1) end
  local turned = {}
  for i = #merged, 1, -1 do
    turned[#turned + 1] = merged[i]
    if #turned == 4000 or i == 1 then
      redis.call('LPUSH', KEYS[1], unpack(turned))
      turned = {}
    end
  end
  if whole then redis.call('LTRIM', KEYS[1], 0, #merged - 1) end
end
redis.call('EXPIRE', KEYS[1], ttl)
end_record()
redis.call('PUBLISH', ARGV[2], '0') -- no id that a consumer could take for one it has
return count
