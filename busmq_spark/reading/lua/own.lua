-- The owner of a subscription, for a server with several owners. The caller becomes the owner of
-- one that does not exist yet in this life of the queue.
-- KEYS metadata acks owners lease, for each queue
-- ARGV subscription owner most long_ttl_s prefix most_of_secret
--      most: how many subscriptions a queue may have when another is registered (0: none is
--      registered); most_of_secret: of them those of the owner's secret (the owner up to ~), with
--      those it has a lease of; prefix: the prefix of the tokens of the caller's leases
-- Result for each queue {status, owner}: ok owner ('' when it was registered beside the server) |
--        missing '' | full '' | full secret (the secret has its share) | shared '' (it belongs to a
--        shared group, whose position cannot be set)
-- The field `:born:<subscription>` of owners is the life in which it was registered; versions
-- before wrote none, and such an owner counts.
-- EXPIRE comes first: it frees a Redis at its maxmemory from refusing what follows, and changes
-- nothing where there is no such key.
local sub, owner, most, lasting, prefix, share, results = ARGV[1], ARGV[2], tonumber(ARGV[3]),
    ARGV[4], ARGV[5], tonumber(ARGV[6] or ARGV[3]), {}

local function count(acks)
  local found = 0
  for _, field in ipairs(redis.call('HKEYS', acks)) do
    -- ':born' and ':at:<name>' are no subscriptions
    if string.sub(field, 1, 1) ~= ':' then found = found + 1 end
  end
  return found
end

-- Whether the secret has no place left. Names that it owns, and neither registered nor reads with,
-- are forgotten where it has none.
local function has_share(acks, owners, leases)
  local secret, mine, all = string.match(owner, '^[^~]*'), {}, redis.call('HGETALL', owners)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) ~= ':' and string.match(all[i + 1], '^[^~]*') == secret then
      mine[#mine + 1] = all[i]
    end
  end
  if #mine < share then return false end
  local left = #mine
  for _, name in ipairs(mine) do
    if redis.call('HEXISTS', acks, name) == 0 and redis.call('EXISTS', leases .. name) == 0 then
      redis.call('HDEL', owners, name, ':born:' .. name)
      left = left - 1
    end
  end
  return left >= share
end

for q = 1, #KEYS / 4 do
  local metadata, acks, owners, lease = KEYS[4 * q - 3], KEYS[4 * q - 2], KEYS[4 * q - 1],
      KEYS[4 * q]
  redis.call('EXPIRE', owners, lasting)
  local kind, life = redis.call('HMGET', acks, ':shared:' .. sub, ':born'), ':born:' .. sub
  local born, noted = redis.call('HGET', metadata, 'born') or '',
      redis.call('HMGET', owners, sub, life)
  local now = noted[1] and (not noted[2] or noted[2] == born) and noted[1] or ''
  local holder = redis.call('GET', lease) or ''
  if redis.call('EXISTS', metadata) == 0 then
    results[q] = {'missing', ''}
  elseif kind[1] and kind[2] == born then
    results[q] = {'shared', ''}
  elseif redis.call('HEXISTS', acks, sub) == 1 or holder ~= ''
      and (now ~= '' or string.sub(holder, 1, #prefix) ~= prefix) then
    results[q] = {'ok', now}
  elseif count(acks) >= most then
    results[q] = {'full', ''}
  elseif now == '' and has_share(acks, owners, string.sub(lease, 1, #lease - #sub)) then
    results[q] = {'full', 'secret'}
  else
    redis.call('HSET', owners, sub, owner, life, born)
    redis.call('EXPIRE', owners, lasting)
    results[q] = {'ok', owner}
  end
end
return results
