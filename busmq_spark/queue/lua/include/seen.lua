-- seen(acks, sub) -> s: notes when a subscription was last in use, by the server's clock. A field
-- that begins with a colon is no subscription.
-- The result is that time in seconds since 1970. A user without the right to TIME may do everything
-- else; the time is nil then.
local function seen(acks, sub)
  local now = redis.pcall('TIME')
  if now[1] then redis.call('HSET', acks, ':at:' .. sub, now[1]) end
  return now[1]
end
