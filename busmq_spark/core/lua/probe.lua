-- What a reader of a range must know first. Writes nothing.
-- KEYS metadata messages
-- ARGV first id of the range, the place in the list from which on fewer values are looked at, since every look walks there
-- Result {incarnation ('' when missing), oldest id ('' when empty), longest of a few values there, 0 when none, what is noted of sizes or ''}
local known = redis.call('HMGET', KEYS[1], 'born', 'sizes')
local born, noted = known[1] or '', known[2] or ''
local oldest = redis.call('LINDEX', KEYS[2], 0)
if not oldest then return {born, '', 0, noted} end
local index, longest = math.max(0, tonumber(ARGV[1]) - tonumber(oldest)), 0
for _, rows in ipairs(index >= tonumber(ARGV[2]) and {4} or {1, 15}) do
  local part = redis.call('LRANGE', KEYS[2], 2 * index, 2 * (index + rows) - 1)
  for i = 2, #part, 2 do longest = math.max(longest, #part[i]) end
  if longest > 65536 then break end
  index = index + 1
end
return {born, oldest, longest, noted}
