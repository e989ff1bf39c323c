-- behind(record, id, most) -> the number of items of a pair list up to and including the message
-- with this id (text); nil when it is not there.
-- Ids need not rise in a record: what others give back may be older than what was taken before.
-- Then it is looked for among the last `most` messages.
-- @include find
local function behind(record, id, most)
  if id == '0' then return nil end
  local index, exact = find(record, tonumber(id))
  if exact then return 2 * (index + 1) end
  local length = redis.call('LLEN', record)
  for at = length, math.max(2, length - 2 * most + 2), -2 do
    if redis.call('LINDEX', record, at - 2) == id then return at end
  end
  return nil
end
