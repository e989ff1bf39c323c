-- run(messages, at, most, room) -> flat pairs id, value from position at (0-based, in messages) on: at most so many messages, and none behind
-- the one that reaches room bytes. Asks for a few at first, so that a list of huge values is not read whole to hand out one of them.
local function run(messages, at, most, room)
  local found, step = {}, 1
  while #found < 2 * most and room > 0 do
    local first = 2 * at + #found
    local some = redis.call('LRANGE', messages, first, first + 2 * math.min(step, most - #found / 2) - 1)
    if #some < 2 then break end
    local longest = 1
    for i = 1, #some - 1, 2 do
      found[#found + 1], found[#found + 2] = some[i], some[i + 1]
      room, longest = room - #some[i + 1], math.max(longest, #some[i + 1])
      if room <= 0 then return found end
    end
    step = math.max(1, math.min(64, math.floor(room / (4 * longest))))
  end
  return found
end
