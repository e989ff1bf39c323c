-- A run of a sink: one of its tasks is about to stage rows.
-- KEYS record
-- ARGV run (letters, digits, hyphens; unique for ever) ttl_s (of a sink that never commits)
-- Result {epoch, first, manifest}: a number that is higher for a run that began later; 1 where the
--        run was not known and is the latest now, with the manifest that is on record then: no run
--        that began before can record another one from here on (record.lua), so their other rows
--        stay uncommitted.
-- The number is the time, so that it rises also where the record was lost; a clock that goes back
-- does not lower it.
-- Works on a full Redis: the calls after it make room.
-- @include even_if_full
local known = redis.call('HGET', KEYS[1], 'runs') or ';'
local ttl = math.max(redis.call('TTL', KEYS[1]), tonumber(ARGV[2]))
even_if_full(KEYS[1], ttl)
local _, at = string.find(known, ';' .. ARGV[1] .. '=', 1, true)
local epoch = at and string.match(known, '^(%d+);', at + 1)
if epoch then return {epoch, 0, ''} end
local now = redis.pcall('TIME')
local clock = now[1] and tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) or 0
epoch = string.format('%.0f', math.max(clock, tonumber(redis.call('HGET', KEYS[1], 'epoch')
    or 0) + 1))
redis.call('HSET', KEYS[1], 'epoch', epoch, 'runs',
    string.sub(';' .. ARGV[1] .. '=' .. epoch .. known, 1, 4000))
redis.call('EXPIRE', KEYS[1], ttl)
return {epoch, 1, redis.call('HGET', KEYS[1], 'manifest') or ''}
