-- What a planner must know of some queues, in one round trip. Writes nothing.
-- KEYS metadata messages msgid, for each queue
-- ARGV for each queue the id whose fingerprint is wanted, -1 for none
-- Result for each queue {ttl (0: no such queue), born, maxsize, last id given, oldest id, newest id, count, mark of the wanted id, mark of the newest}
-- Ids are text, '' when there is none: Lua integers would survive, but text keeps them exact for every client.
-- @include find
-- @include mark
local states = {}
for i = 1, #ARGV do
  local metadata, messages, msgid = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local stored = redis.call('HMGET', metadata, 'ttl', 'born', 'maxsize')
  local count = redis.call('LLEN', messages) / 2
  local oldest, newest, wanted_mark, newest_mark = '', '', '', ''
  if count > 0 then
    oldest = redis.call('LINDEX', messages, 0)
    local tail = redis.call('LRANGE', messages, -2, -1)
    newest, newest_mark = tail[1], mark(tail[2])
    local wanted = tonumber(ARGV[i])
    if wanted == tonumber(newest) then
      wanted_mark = newest_mark
    elseif wanted >= tonumber(oldest) then
      local index, exact = find(messages, wanted)
      if exact then wanted_mark = mark(redis.call('LINDEX', messages, 2 * index + 1)) end
    end
  end
  states[i] = {tonumber(stored[1] or 0) or 0, stored[2] or '', tonumber(stored[3] or 0) or 0, redis.call('GET', msgid) or '0',
    oldest, newest, count, wanted_mark, newest_mark}
end
return states
