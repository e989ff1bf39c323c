-- Make a mirror a queue of its own: its ids go on after the last copied one.
-- KEYS metadata msgid
-- Result {status, last, seen}: ok (promoted after last; the origin was known to have given ids up
--        to seen) | own (it is no mirror, or no more) | missing field promoted of metadata:
--        `last:ms`, the id after which it was promoted, and the time, in milliseconds since 1970
--        (0: without the right to TIME).
-- @include even_if_full
local known = redis.call('HMGET', KEYS[1], 'ttl', 'mirror_of', 'mirrored')
if not known[1] then return {'missing', '0', '0'} end
local given = redis.call('GET', KEYS[2]) or '0'
if not known[2] then return {'own', given, '0'} end
local last, seen = string.match(known[3] or '0::0', '^(%d+):%x*:(%d+)$')
local now = redis.pcall('TIME')
local ms = now[1] and string.format('%s%03d', now[1], now[2] / 1000) or '0'
even_if_full(KEYS[1], known[1])
redis.call('HSET', KEYS[1], 'promoted', last .. ':' .. ms)
redis.call('HDEL', KEYS[1], 'mirror_of', 'mirrored', 'witness')
return {'ok', last, seen}
