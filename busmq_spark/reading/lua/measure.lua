-- Find the last id from an id on that fits a budget of bytes. Writes nothing.
-- KEYS messages
-- ARGV first last budget
-- Result {last id that fits, bytes up to it, 1 if the budget or the range ended}; looks at about 1
--        MB or 1 000 messages a call.
-- @include find
local first, last, budget = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local index, exact = find(KEYS[1], first)
if not exact then return {first - 1, 0, 1} end
local at, bytes, seen = first - 1, 0, 0
local step = 1 -- so few that they come to about 64 KB: a value has to be copied here to be measured
while at < last and seen < 1000 and bytes < 1048576 do
  local part = redis.call('LRANGE', KEYS[1], 2 * index, 2 * (index + math.min(step, last - at)) - 1)
  if #part == 0 then return {at, bytes, 1} end
  for i = 2, #part, 2 do
    if bytes + #part[i] > budget then return {at, bytes, 1} end
    bytes = bytes + #part[i]
    at = tonumber(part[i - 1])
    seen = seen + 1
    index = index + 1
    if at >= last then break end
  end
  step = math.max(1, math.min(50, math.floor(65536 * seen / (bytes + 1))))
end
return {at, bytes, at >= last and 1 or 0}
