-- Keep queues alive, and renew the leases of their reader. A queue that keeps what is acknowledged
-- drops what it keeps no longer.
-- KEYS metadata messages msgid toack acks sinks clock bytes lease readers, for each queue
-- ARGV token lease_ms long_ttl_s most field record hold own..., own for each queue
--      token '' renews no lease; at most `most` messages are dropped a call, over all its queues;
--      field, record, hold, own: as in include/announce.lua (record '' is not noted)
-- Result for each queue: 1 alive, 0 missing, -1 the lease belongs to another reader
-- @include let_go
-- @include announce
local token, lasting, most, result = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), {}
for i = 1, #KEYS / 10 do
  local at = 10 * (i - 1)
  local stored = redis.call('HMGET', KEYS[at + 1], 'ttl', 'retain')
  local ttl = tonumber(stored[1] or nil)
  if not ttl then
    result[i] = 0
  else
    for k = 1, 4 do redis.call('EXPIRE', KEYS[at + k], ttl) end
    for k = 5, 6 do redis.call('EXPIRE', KEYS[at + k], math.max(ttl, lasting)) end
    -- as include/clock.lua does
    for k = 7, 8 do redis.call('EXPIRE', KEYS[at + k], math.max(ttl, 3600)) end
    result[i] = 1
    if token ~= '' then
      local holder = redis.call('GET', KEYS[at + 9])
      if holder and holder ~= token then
        result[i] = -1
      else
        redis.call('SET', KEYS[at + 9], token, 'PX', ARGV[2])
      end
    end
    local q = {metadata = KEYS[at + 1], messages = KEYS[at + 2], msgid = KEYS[at + 3],
        toack = KEYS[at + 4], acks = KEYS[at + 5], clock = KEYS[at + 7], bytes = KEYS[at + 8],
        readers = KEYS[at + 10], ttl = ttl, retain = stored[2]}
    if (ARGV[6] or '') ~= '' and result[i] == 1 then
      announce(q, ARGV[5], ARGV[6], ARGV[7], ARGV[7 + i] or '')
    end
    if stored[2] then
      most = most - let_go(q, tonumber(redis.call('GET', KEYS[at + 3]) or 0), most)
    end
  end
end
return result
