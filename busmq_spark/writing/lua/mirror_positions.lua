-- Set the groups of a mirror to where those of its origin are.
-- KEYS metadata acks, then lease and group of each name
-- ARGV born long_ttl_s (name last shared)...: all that the origin has; shared 1 for a shared group
-- Result how many have changed; -1 when it is no mirror of this life.
-- A group that is read here, or was made here under the same name, stays where it is. A group that
-- is gone at the origin is removed. No position exceeds the last copied id: else the group would
-- skip the first messages that are pushed here after a promotion. `:mirrored:<name>` in acks marks
-- those of the origin.
-- @include even_if_full
-- @include seen
local metadata, acks, born = KEYS[1], KEYS[2], ARGV[1]
local known = redis.call('HMGET', metadata, 'ttl', 'born', 'mirror_of', 'mirrored')
if not known[1] or known[2] ~= born or not known[3] then return -1 end
local copied, lasting = string.match(known[4] or '0:', '^(%d+):'),
    math.max(tonumber(known[1]) or 0, tonumber(ARGV[2]))
even_if_full(acks, lasting)
local there, all, changed, dropped = {}, redis.call('HGETALL', acks), 0, {}
for i = 1, #all, 2 do there[all[i]] = all[i + 1] end
if there[':born'] ~= born then there = {} end
for n = 1, (#ARGV - 2) / 3 do
  local name, last, shared = ARGV[3 * n], ARGV[3 * n + 1], ARGV[3 * n + 2]
  if tonumber(last) > tonumber(copied) then last = copied end
  local ours, mirrored = ':mirrored:' .. name, there[':mirrored:' .. name]
  there[ours] = nil
  local free = (mirrored or not there[name])
      and redis.call('EXISTS', KEYS[2 * n + 1], KEYS[2 * n + 2]) == 0
  if free and there[name] ~= last then
    redis.call('HSET', acks, name, last, ':born', born, ours, 1)
    if shared == '1' then redis.call('HSET', acks, ':shared:' .. name, 1) end
    seen(acks, name)
    changed = changed + 1
  end
end
redis.call('EXPIRE', acks, lasting)
for field, _ in next, there do
  local name = string.match(field, '^:mirrored:(.*)$')
  if name then
    for _, each in ipairs({name, field, ':at:' .. name, ':shared:' .. name}) do
      dropped[#dropped + 1] = each
    end
    changed = changed + 1
  end
end
if #dropped > 0 then redis.call('HDEL', acks, unpack(dropped)) end
return changed
