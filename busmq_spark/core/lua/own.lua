-- The owner of a subscription, for a server with several owners. The caller becomes the owner of one that does not exist yet in this life of the queue.
-- KEYS metadata acks owners lease, for each queue
-- ARGV subscription owner most long_ttl_s prefix
--      most: how many subscriptions a queue may have when another is registered; prefix: what the tokens of the caller's leases begin with
-- Result for each queue {status, owner}: ok owner ('' when it was registered beside the server) | missing '' | full '' | shared '' (it belongs to
-- a shared group, whose position cannot be set)
-- The field `:born:<subscription>` of owners is the life in which it was registered; versions before wrote none, and such an owner counts.
-- EXPIRE comes first: it frees a Redis at its maxmemory from refusing what follows, and changes nothing where there is no such key.
local sub, owner, most, lasting, prefix, results = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], {}

local function count(acks)
  local found = 0
  for _, field in ipairs(redis.call('HKEYS', acks)) do
    if string.sub(field, 1, 1) ~= ':' then found = found + 1 end -- ':born' and ':at:<name>' are no subscriptions
  end
  return found
end

for q = 1, #KEYS / 4 do
  local metadata, acks, owners, lease = KEYS[4 * q - 3], KEYS[4 * q - 2], KEYS[4 * q - 1], KEYS[4 * q]
  redis.call('EXPIRE', owners, lasting)
  local kind, life = redis.call('HMGET', acks, ':shared:' .. sub, ':born'), ':born:' .. sub
  local born, noted = redis.call('HGET', metadata, 'born') or '', redis.call('HMGET', owners, sub, life)
  local now = noted[1] and (not noted[2] or noted[2] == born) and noted[1] or ''
  local holder = redis.call('GET', lease) or ''
  if redis.call('EXISTS', metadata) == 0 then
    results[q] = {'missing', ''}
  elseif kind[1] and kind[2] == born then
    results[q] = {'shared', ''}
  elseif redis.call('HEXISTS', acks, sub) == 1 or holder ~= '' and (now ~= '' or string.sub(holder, 1, #prefix) ~= prefix) then
    results[q] = {'ok', now}
  elseif count(acks) >= most then
    results[q] = {'full', ''}
  else
    redis.call('HSET', owners, sub, owner, life, born)
    redis.call('EXPIRE', owners, lasting)
    results[q] = {'ok', owner}
  end
end
return results
