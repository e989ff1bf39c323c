-- Return a snapshot of each queue at the origin of a mirror. Writes nothing.
-- KEYS metadata messages msgid, for each queue
-- ARGV for each queue after upto: ids whose fingerprints are wanted, -1 for none; upto 0: the
--      newest stored one
-- Result for each queue nine items: ttl (0: no such queue), born, maxsize, last id given, oldest id
--        ('' when empty), the id upto, mark of after, mark of upto ('' when it is not stored),
--        mirror_of ('' when it is no mirror itself). In one flat list, as that of state.lua.
-- @include stored
-- @include mark
local spans = {}
for i = 1, #KEYS / 3 do
  local metadata, messages, msgid = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local known = redis.call('HMGET', metadata, 'ttl', 'born', 'maxsize', 'mirror_of')
  local oldest = redis.call('LINDEX', messages, 0)
  local after, upto = ARGV[2 * i - 1], ARGV[2 * i]
  local mark_after, mark_upto = '', ''
  if oldest then
    if upto == '0' then
      upto, mark_upto = redis.call('LINDEX', messages, -2), mark(redis.call('LINDEX', messages, -1))
    elseif upto ~= '-1' then
      local value = stored(messages, tonumber(upto), tonumber(oldest))
      mark_upto = value and mark(value) or ''
    end
    local value = after ~= '-1' and stored(messages, tonumber(after), tonumber(oldest))
    mark_after = value and mark(value) or ''
  end
  local at = 9 * i
  spans[at - 8], spans[at - 7], spans[at - 6] = tonumber(known[1] or 0) or 0, known[2] or '',
      tonumber(known[3] or 0) or 0
  spans[at - 5], spans[at - 4], spans[at - 3] = redis.call('GET', msgid) or '0', oldest or '', upto
  spans[at - 2], spans[at - 1], spans[at] = mark_after, mark_upto, known[4] or ''
end
return spans
