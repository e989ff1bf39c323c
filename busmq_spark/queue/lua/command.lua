-- Let a queue take one group only, since commands are sent to it.
-- KEYS metadata acks
-- Result {} it does; the names of its groups, sorted, where it has several: nothing is done then.
--        Nil when there is no such queue.
local known = redis.call('HMGET', KEYS[1], 'ttl', 'born', 'command')
if not known[1] then return false end
if known[3] then return {} end
local groups = {}
if redis.call('HGET', KEYS[2], ':born') == known[2] then
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) ~= ':' then groups[#groups + 1] = all[i] end
  end
end
if #groups > 1 then
  table.sort(groups)
  return groups
end
redis.call('HSET', KEYS[1], 'command', 1)
return {}
