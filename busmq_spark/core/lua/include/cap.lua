-- cap(messages, acks, rule, last): of a queue with a cap drops the oldest messages beyond it, 2,000 at most. rule: the field `cap` of the metadata: how many
-- messages stay, and `:drop` behind it where also those go that a reader has not acknowledged. last: the newest id. It never empties the list. Needs
-- find and lowest.
local function cap(messages, acks, rule, last)
  local most, how = string.match(rule, '^(%d+)(:?%a*)$')
  local over = most and redis.call('LLEN', messages) / 2 - most or 0
  if over > 0 and how == '' then over = math.min(over, find(messages, lowest(acks, last)) + 1) end
  if over > 0 then redis.call('LTRIM', messages, 2 * math.min(over, 2000), -1) end
end
