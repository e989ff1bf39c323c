-- The time of the server that has a queue. Writes nothing.
-- KEYS metadata
-- Result milliseconds since 1970; 0 for a user without the right to TIME.
local now = redis.pcall('TIME')
return now[1] and string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)) or '0'
