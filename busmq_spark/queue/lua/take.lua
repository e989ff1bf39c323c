-- Take messages from the head into a record, so that a lost reply can be read again (protocol 1.4
-- POP, in batches).
-- KEYS messages record [lease]
-- ARGV after most most_bytes ttl_s token
-- after: the id the consumer received last (0: none). Messages of the record after it were taken
-- and never arrived: they come first.
-- With a lease the record is toack, where messages stay until acked, and the taker must hold the
-- lease. Without one the record is the taker's own: it holds the last batch only. So at most one
-- batch can follow the id; more than one batch comes in several calls.
-- Result flat pairs id, value; empty when there is nothing; -1 when the lease is not the taker's.
-- @include even_if_full
-- @include behind
-- @include run
local after, most, room, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if KEYS[3] and redis.call('GET', KEYS[3]) ~= ARGV[5] then return -1 end
local tail = redis.call('LINDEX', KEYS[2], -2)
if tail == 'ended' then return {} end -- a late packet: the consumer has given everything back
if tail and tail ~= after then
  redis.call('EXPIRE', KEYS[2], ttl)
  if not KEYS[3] then return redis.call('LRANGE', KEYS[2], 0, 3999) end
  return run(KEYS[2], (behind(KEYS[2], after, 2000) or 0) / 2, most, room)
end
local taken = run(KEYS[1], 0, most, room)
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so the
-- command that may empty a key comes last.
if #taken > 0 then
  even_if_full(KEYS[2], ttl)
  redis.call('RPUSH', KEYS[2], unpack(taken))
  redis.call('EXPIRE', KEYS[2], ttl)
  if not KEYS[3] then redis.call('LTRIM', KEYS[2], -#taken, -1) end
  redis.call('LTRIM', KEYS[1], #taken, -1)
elseif tail and not KEYS[3] then
  redis.call('DEL', KEYS[2])
end
return taken
