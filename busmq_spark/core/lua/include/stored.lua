-- stored(messages, id, head, count) -> the value of the message with the id, and its position; nil when it is not stored. head is the oldest stored id.
-- Ids have no holes but for accidents, so that one LRANGE finds it. Redis before 7.0 walks from the head to what LRANGE asks for, so where
-- count is given, how many messages there are, what is nearer to the end comes by two LINDEX.
-- @include find
local function stored(messages, id, head, count)
  if id < head then return nil end
  local index, found, value = id - head
  if not count or 2 * index < count then
    found, value = unpack(redis.call('LRANGE', messages, 2 * index, 2 * index + 1))
  elseif index < count then
    found = redis.call('LINDEX', messages, 2 * (index - count))
    value = tonumber(found) == id and redis.call('LINDEX', messages, 2 * (index - count) + 1)
  end
  if tonumber(found or nil) == id then return value, index end
  local exact
  index, exact = find(messages, id)
  if exact then return redis.call('LINDEX', messages, 2 * index + 1), index end
end
