-- Remove what earlier runs of a sink have staged for a queue, except what is on record.
-- KEYS stages
-- ARGV epoch prefix attempt...
--      prefix: of the keys of staged lists of the queue; attempts: those on record
-- Result how many lists were removed. Their keys have the slot of the hash that names them, and are
--        its alone.
local held = {}
for i = 3, #ARGV do held[ARGV[i]] = true end
local found, removed = redis.call('HGETALL', KEYS[1]), 0
for i = 1, #found, 2 do
  if tonumber(found[i + 1]) < tonumber(ARGV[1]) then
    if not held[found[i]] then removed = removed + redis.call('UNLINK', ARGV[2] .. found[i]) end
    redis.call('HDEL', KEYS[1], found[i])
  end
end
return removed
