-- Keep queues alive, and renew the leases of their reader.
-- KEYS metadata messages msgid toack acks sinks clock lease, for each queue
-- ARGV token lease_ms long_ttl_s (token '' renews no lease)
-- Result for each queue: 1 alive, 0 missing, -1 the lease belongs to another reader
local token, lasting, result = ARGV[1], tonumber(ARGV[3]), {}
for q = 1, #KEYS / 8 do
  local at = 8 * (q - 1)
  local ttl = tonumber(redis.call('HGET', KEYS[at + 1], 'ttl') or nil)
  if not ttl then
    result[q] = 0
  else
    for i = 1, 4 do redis.call('EXPIRE', KEYS[at + i], ttl) end
    for i = 5, 6 do redis.call('EXPIRE', KEYS[at + i], math.max(ttl, lasting)) end
    redis.call('EXPIRE', KEYS[at + 7], math.max(ttl, 3600)) -- as include/clock.lua does
    result[q] = 1
    if token ~= '' then
      local holder = redis.call('GET', KEYS[at + 8])
      if holder and holder ~= token then
        result[q] = -1
      else
        redis.call('SET', KEYS[at + 8], token, 'PX', ARGV[2])
      end
    end
  end
end
return result
