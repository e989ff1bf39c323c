-- stored(messages, id, head) -> the value of the message with the id, nil when it is not stored; head is the oldest stored id. Needs find.
-- Ids have no holes but for accidents, so that one LRANGE finds it; two LINDEX walk there twice.
local function stored(messages, id, head)
  if id < head then return nil end
  local pair = redis.call('LRANGE', messages, 2 * (id - head), 2 * (id - head) + 1)
  if tonumber(pair[1]) == id then return pair[2] end
  local index, exact = find(messages, id)
  return exact and redis.call('LINDEX', messages, 2 * index + 1) or nil
end
