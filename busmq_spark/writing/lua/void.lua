-- Begin a run whose batches may reuse the numbers of earlier batches for other rows: earlier
-- records and progress do not count for them.
-- KEYS record
-- ARGV ttl_s
-- Result the manifest that was on record, '' where there was none
local now = redis.pcall('TIME')
local clock = now[1] and tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) or 0
local epoch = string.format('%.0f', math.max(clock,
    tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0) + 1))
local manifest = redis.call('HGET', KEYS[1], 'manifest') or ''
redis.call('HDEL', KEYS[1], 'batch', 'manifest', 'query', 'span')
redis.call('HSET', KEYS[1], 'epoch', epoch, 'void', epoch)
redis.call('EXPIRE', KEYS[1], ARGV[1])
return manifest
