-- Sample the sizes of the messages of an id range. Writes nothing.
-- KEYS messages
-- ARGV first stride run count
-- Result for each of `count` places, `stride` messages apart from `first` on, the bytes of `run`
--        values together; fewer places where the list ends.
-- @include find
local index, stride, run, sizes = find(KEYS[1], tonumber(ARGV[1])), tonumber(ARGV[2]),
    tonumber(ARGV[3]), {}
for i = 1, tonumber(ARGV[4]) do
  local at = 2 * (math.max(0, index) + (i - 1) * stride)
  local part = redis.call('LRANGE', KEYS[1], at, at + 2 * run - 1)
  if #part < 2 * run then break end
  sizes[i] = 0
  for j = 2, #part, 2 do sizes[i] = sizes[i] + #part[j] end
end
return sizes
