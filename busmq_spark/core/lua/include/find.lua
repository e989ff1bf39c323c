-- find(messages, id) -> index, exact: the position (0-based, in messages) of the last message whose id is <= id; -1 when there is none.
-- exact says whether that message has the id itself. One or two LINDEX when ids have no hole, else a binary search.
local function id_at(messages, index)
  return tonumber(redis.call('LINDEX', messages, 2 * index))
end
local function find(messages, id)
  local count = redis.call('LLEN', messages) / 2
  if count == 0 then return -1, false end
  local head = id_at(messages, 0)
  if id < head then return -1, false end
  local high = math.min(id - head, count - 1)
  local found = id_at(messages, high)
  if found <= id then return high, found == id end
  local low = 0
  while low < high - 1 do
    local middle = math.floor((low + high) / 2)
    if id_at(messages, middle) <= id then low = middle else high = middle end
  end
  return low, id_at(messages, low) == id
end
