-- How the table of subscriptions to events has changed since a version (subscribers.lua). Writes
-- nothing.
-- KEYS subscriptions
-- ARGV version
-- Result the changes since, each JSON of {version before, version after, field, value}, the
-- oldest first; {} where that is the version now; nil where
-- they are not known: too many, or a program has changed the table that notes none.
local now, found = redis.call('HGET', KEYS[1], ':version') or '', {}
local seq, wanted = tonumber(redis.call('HGET', KEYS[1], ':log') or 0), now
for back = 0, 511 do
  if wanted == ARGV[1] then
    local since = {}
    for i = #found, 1, -1 do since[#since + 1] = found[i] end
    return since
  end
  local entry = seq > back and redis.call('HGET', KEYS[1], ':log:' .. (seq - back) % 512)
  if not entry then return false end
  local change = cjson.decode(entry)
  if change[2] ~= wanted then return false end
  found[#found + 1], wanted = entry, change[1]
end
return false
