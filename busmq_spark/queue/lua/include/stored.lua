-- stored(messages, id, head) -> the value of the message with the id, and its position; nil when it
-- is not stored. head is the oldest stored id.
-- Ids have no holes but for accidents, so that its place is known. Two LINDEX take Redis less than
-- half the time of a LRANGE, but walk there twice; and Redis before 7.0 walks from the head to what
-- a place counted from the head is at.
-- @include find
local function stored(messages, id, head)
  if id < head then return nil end
  local index, found, value = id - head
  local at, count = 2 * index, index >= 1000 and redis.call('LLEN', messages) / 2
  if count and 2 * index < count then
    found, value = unpack(redis.call('LRANGE', messages, at, at + 1))
  elseif not count or index < count then
    if count then at = at - 2 * count end
    found = redis.call('LINDEX', messages, at)
    value = tonumber(found or nil) == id and redis.call('LINDEX', messages, at + 1)
  end
  if tonumber(found or nil) == id then return value, index end
  local exact
  index, exact = find(messages, id)
  if exact then return redis.call('LINDEX', messages, 2 * index + 1), index end
end
