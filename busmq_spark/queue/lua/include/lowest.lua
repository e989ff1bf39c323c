-- lowest(acks, low): the least of low and of what the subscriptions of a queue have acked. A field
-- that begins with a colon is no subscription.
local function lowest(acks, low)
  local all = redis.call('HGETALL', acks)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) ~= ':' then low = math.min(low, tonumber(all[i + 1])) end
  end
  return low
end
