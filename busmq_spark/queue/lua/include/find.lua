-- find(messages, id) -> index, exact: the position (0-based, in messages) of the last message whose
-- id is <= id; -1 when there is none.
-- exact says whether that message has the id itself. It takes one or two LINDEX when ids have no
-- hole, else a binary search. They count from the end that is nearer: Redis before 7.0 walks from
-- the head else.
local function id_at(messages, index, count)
  return tonumber(redis.call('LINDEX', messages,
      2 * (2 * index > count and index - count or index)))
end
local function find(messages, id)
  local count = redis.call('LLEN', messages) / 2
  if count == 0 then return -1, false end
  local head = id_at(messages, 0, count)
  if id < head then return -1, false end
  local high = math.min(id - head, count - 1)
  local found = id_at(messages, high, count)
  if found <= id then return high, found == id end
  local low = 0
  while low < high - 1 do
    local middle = math.floor((low + high) / 2)
    if id_at(messages, middle, count) <= id then low = middle else high = middle end
  end
  return low, id_at(messages, low, count) == id
end
