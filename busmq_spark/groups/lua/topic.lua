-- Make a topic, join the one that exists, or let it grow. It never has fewer partitions than
-- before.
-- KEYS topic
-- ARGV partitions born grow ttl_s changed
--      partitions: of a topic that is made, 0 to make none. grow: 1 when one that exists shall have
--      at least as many. changed: the channel on which that is published
-- Result {partitions, born} as stored afterwards, {'0', ''} when there is none.
-- EXPIRE comes first: what lives on must do so on a full Redis, too.
redis.call('EXPIRE', KEYS[1], ARGV[4])
local found = redis.call('HMGET', KEYS[1], 'partitions', 'born')
local wanted, has = tonumber(ARGV[1]), tonumber(found[1] or 0) or -1
if wanted == 0 or has < 0 or has > 0 and (wanted <= has or ARGV[3] ~= '1') then
  return {found[1] or '0', found[2] or ''}
end
local born = found[2] or ARGV[2]
redis.call('HSET', KEYS[1], 'partitions', wanted, 'born', born)
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', ARGV[5], '')
return {ARGV[1], born}
