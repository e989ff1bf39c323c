-- Make a queue the mirror of one elsewhere, or go on with one that is.
-- KEYS metadata messages msgid toack acks clock
-- ARGV born (of the life at the origin) expected (the born that the caller has seen here; '' when
--      there was no queue) mirror_of ttl_s maxsize start (everything up to this id counts as
--      copied) replace (1: a queue of this place's own is given up for it) long_ttl_s A queue of
--      this place's own to which nothing was ever pushed is given up in any case: a reader may have
--      been there first.
-- Result {status, born, last, detail}: ok born last mark:witness (copied up to last, whose
--        fingerprint is mark, '' when not known; witness as of mirror_append.lua) | life born last
--        mirror_of (another than the caller expects, or none: look again) | own born last promoted
--        (a queue of this place's own, with `at:ms` where it was promoted) A new life begins only
--        in the place of the one that the caller has seen: a call that comes late ends none that
--        began since.
-- field mirrored of metadata: `last:mark:seen`, copied up to last; seen is the last id that the
-- origin is known to have given.
-- @include even_if_full
local known = redis.call('HMGET', KEYS[1], 'ttl', 'born', 'mirror_of', 'mirrored', 'promoted',
    'witness')
local there, born = known[1] and tonumber(known[1]), known[2] or ''
local ttl, start = tonumber(ARGV[4]), ARGV[6]
local given = redis.call('GET', KEYS[3]) or '0'
local used = given ~= '0' or known[5] or redis.call('EXISTS', KEYS[2]) == 1
if there and not known[3] and used and ARGV[7] ~= '1' then
  return {'own', born, given, known[5] or ''}
end
if there and known[3] and born == ARGV[1] then
  even_if_full(KEYS[1], there)
  redis.call('HSET', KEYS[1], 'mirror_of', ARGV[3])
  local last, mark = string.match(known[4] or '', '^(%d+):(%x*):')
  return {'ok', born, last or '0', (mark or '') .. ':' .. (known[6] or '')}
end
if (there and born or '') ~= ARGV[2] then
  return {'life', there and born or '', given, known[3] or ''}
end
even_if_full(KEYS[1], ttl)
redis.call('HDEL', KEYS[1], 'sizes', 'clock', 'acked', 'promoted', 'done', 'lets', 'bytes',
    'witness')
redis.call('HSET', KEYS[1], 'ttl', ARGV[4], 'source', 'local', 'discover', 'false', 'maxsize',
    ARGV[5], 'born', ARGV[1], 'mirror_of', ARGV[3],
  'mirrored', start .. '::' .. start)
redis.call('SET', KEYS[3], start, 'EX', ttl)
redis.call('EXPIRE', KEYS[1], ttl)
if redis.call('HGET', KEYS[5], ':born') ~= ARGV[1] then redis.call('UNLINK', KEYS[5]) end
redis.call('UNLINK', KEYS[2], KEYS[4], KEYS[6])
return {'ok', ARGV[1], start, ':'}
