-- before(times, column, value): how many pairs at the beginning of a clock's list have less than
-- value in a column, 0 the time or 1 the id.
local function before(times, column, value)
  local low, high = 0, redis.call('LLEN', times) / 2
  -- as for what came last
  if high > 0 and tonumber(redis.call('LINDEX', times, column - 2)) < value then return high end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber(redis.call('LINDEX', times, 2 * middle + column)) < value then
      low = middle + 1 else high = middle
    end
  end
  return low
end
