-- Whether a peer of a federation server may have a further field in a hash of a queue, of which
-- each secret has a share.
-- KEYS hash
-- ARGV field most own narrowed older_than
--      own, narrowed: what the fields of the peer's secret, and of its narrowed tokens,
--      begin with. older_than: seconds since 1970; fields `…:s` of
--      the secret with an older s are removed where it would be full (0: none are)
-- Result 1 it is there, or there is room; 0 the secret has its share
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
local most, older, found, gone = tonumber(ARGV[2]), tonumber(ARGV[5]), 0, {}
local all = redis.call('HLEN', KEYS[1]) < most and {} or redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if string.sub(all[i], 1, #ARGV[3]) == ARGV[3] or string.sub(all[i], 1, #ARGV[4]) == ARGV[4] then
    local s = tonumber(string.match(all[i + 1], ':(%d+)$'))
    if s and s > 0 and s < older then gone[#gone + 1] = all[i] else found = found + 1 end
  end
end
for _, field in ipairs(gone) do redis.call('HDEL', KEYS[1], field) end
return found < most and 1 or 0
