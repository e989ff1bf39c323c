-- Return the states of some queues for a planner, in one round trip. Writes nothing.
-- KEYS metadata messages msgid, for each queue
-- ARGV for each queue the id whose fingerprint is wanted, -1 for none
-- Result for each queue ten items: ttl (0: no such queue), born, maxsize, last id given, oldest id,
--        newest id, count, mark of the wanted id, mark of the newest, and, of a queue that keeps
--        what is acknowledged, the id up to which all readers have acknowledged it ('' of another).
--        In one flat list: Redis sends every nested one in a packet of its own, which costs as much
--        as all the rest.
-- Ids are text, '' when there is none: Lua integers would survive, but text keeps them exact for
-- every client.
-- @include stored
-- @include mark
local states = {}
for i = 1, #ARGV do
  local metadata, messages, msgid = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local known = redis.call('HMGET', metadata, 'ttl', 'born', 'maxsize', 'done')
  local count = redis.call('LLEN', messages) / 2
  local oldest, newest, wanted_mark, newest_mark = '', '', '', ''
  if count > 0 then
    oldest = redis.call('LINDEX', messages, 0)
    newest = redis.call('LINDEX', messages, -2)  -- not LRANGE, which walks there from the head
    newest_mark = mark(redis.call('LINDEX', messages, -1))
    local wanted = tonumber(ARGV[i])
    if wanted == tonumber(newest) then
      wanted_mark = newest_mark
    else
      local value = stored(messages, wanted, tonumber(oldest))
      if value then wanted_mark = mark(value) end
    end
  end
  local at = 10 * i - 1
  states[at - 8], states[at - 7], states[at - 6] = tonumber(known[1] or 0) or 0, known[2] or '',
      tonumber(known[3] or 0) or 0
  states[at - 5], states[at - 4], states[at - 3] = redis.call('GET', msgid) or '0', oldest, newest
  states[at - 2], states[at - 1], states[at] = count, wanted_mark, newest_mark
  states[at + 1] = known[4] or ''
end
return states
