-- Join a group of a topic for some time, or leave it, and return its members. Members say nothing
-- of who owns what: that is a lease of each partition queue.
-- KEYS members
-- ARGV member stay_ms ttl_s changed group dead...
--      stay_ms: 0 to leave. changed: the channel on which the group is published when its members
--      change. dead: members known to be
-- Result {now, member, until, member ...}: the members, with this one unless it leaves. now, until:
--        ms since 1970
local member, stay, members = ARGV[1], tonumber(ARGV[2]), KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- EXPIRE comes first: on a full Redis a script whose first write is one that may not store more
-- goes on (include/even_if_full.lua).
redis.call('EXPIRE', members, ARGV[3])
local changed, gone = 0, {}
if stay > 0 then
  changed = redis.call('ZADD', members, string.format('%.0f', now + stay), member)
  redis.call('EXPIRE', members, ARGV[3])
else
  gone[1] = member
end
for i = 6, #ARGV do gone[#gone + 1] = ARGV[i] end
-- An entry far in the future is from another clock: it is dropped, and a live member adds it again.
local out, all = {string.format('%.0f', now)}, redis.call('ZRANGE', members, 0, -1, 'WITHSCORES')
local leaves = {}
for _, each in ipairs(gone) do leaves[each] = true end
for i = 1, #all, 2 do
  local ends = tonumber(all[i + 1])
  if not leaves[all[i]] and all[i] ~= member and (ends <= now or ends > now + 120000) then
    leaves[all[i]], gone[#gone + 1] = true, all[i]
  end
  if not leaves[all[i]] then out[#out + 1], out[#out + 2] = all[i], all[i + 1] end
end
for i = 1, #all, 2 do
  if leaves[all[i]] then changed = 1 end
end
if changed > 0 then redis.call('PUBLISH', ARGV[4], ARGV[5]) end
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so this
-- comes last.
if #gone > 0 then redis.call('ZREM', members, unpack(gone)) end
return out
