-- Note the time at which the newest id of queues was seen: for messages of peers, which note
-- nothing. A queue that keeps what is acknowledged drops what it keeps no longer.
-- KEYS metadata messages msgid acks clock bytes, for each queue
-- ARGV most (messages dropped a call, over all its queues)
-- Result for each queue 1 when its newest id was noted, 0 when it had been, -1 when there is no
--        such queue
-- @include note
-- @include let_go
local results, most = {}, tonumber(ARGV[1])
for i = 1, #KEYS / 6 do
  local metadata, messages, msgid, acks, times, bytes = unpack(KEYS, 6 * i - 5, 6 * i)
  local stored = redis.call('HMGET', metadata, 'ttl', 'clock', 'retain')
  local ttl, last = tonumber(stored[1] or nil), tonumber(redis.call('GET', msgid) or 0)
  results[i] = not ttl and -1 or tonumber(string.match(stored[2] or '', ':(%d+)$')) == last and 0
      or 1
  if results[i] == 1 then note(metadata, messages, times, stored[2], last, ttl, stored[3]) end
  if ttl and stored[3] then
    local q = {metadata = metadata, messages = messages, acks = acks, clock = times, bytes = bytes,
        ttl = ttl, retain = stored[3]}
    most = most - let_go(q, last, most)
  end
end
return results
