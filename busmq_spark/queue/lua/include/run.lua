-- run(messages, at, most, room, widest) -> flat pairs id, value from position at (0-based, in
-- messages) on: at most so many messages, and none after the one that reaches room bytes. Asks for
-- a few at first, so that a list of huge values is not read whole to hand out one of them; never
-- for more than widest (64) at once.
local function run(messages, at, most, room, widest)
  local found, count, step = {}, 0, 1
  while count < 2 * most and room > 0 do
    local first = 2 * at + count
    local some = redis.call('LRANGE', messages, first,
        first + 2 * math.min(step, most - count / 2) - 1)
    if #some < 2 then break end
    local longest = 1
    for i = 1, #some - 1, 2 do
      local value = some[i + 1]
      found[count + 1], found[count + 2], count = some[i], value, count + 2
      room, longest = room - #value, math.max(longest, #value)
      if room <= 0 then return found end
    end
    step = math.max(1, math.min(widest or 64, math.floor(room / (4 * longest))))
  end
  return found
end
