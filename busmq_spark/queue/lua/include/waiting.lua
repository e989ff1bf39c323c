-- waiting(metadata, messages, retain): how many messages some reader has still to acknowledge: all
-- that are stored, but for those that are acknowledged and kept. retain: the field of the metadata,
-- which a queue has that keeps some.
local function waiting(metadata, messages, retain)
  local stored = redis.call('LLEN', messages) / 2
  if not retain or stored == 0 then return stored end
  -- @include find
  return stored - find(messages, tonumber(redis.call('HGET', metadata, 'done') or nil) or 0) - 1
end
