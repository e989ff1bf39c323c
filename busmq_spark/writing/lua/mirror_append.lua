-- Append a chunk to a mirror: messages with the ids they have at the origin, when they follow what
-- is there, in the same life.
-- KEYS metadata messages msgid toack acks clock
-- ARGV available born after upto seen floor most witness (id value)...
--      after, upto: the chunk is all that the origin has of the ids above after, up to upto; ids
--      that are missing were gone there. seen: the last id that the origin has given. floor:
--      messages up to this id are deleted here, too, except those that a subscription of the mirror
--      has not acked (0: none); at most `most` messages a call. witness: a pair `ms:id` of the
--      origin's clock of when upto was read, for the field `witness` ('': none is known).
-- Result {status, a, b}: ok last more (copied up to last; more 1: there is more to drop, call
--        again) | at last 0 (the chunk does not follow last:
--      nothing is done) | foreign first last (ids that were given here, by a program that does not
--      know mirrors) | life born 0 (another life is mirrored here now) | own 0 0 (it is no mirror,
--      or no more) | missing 0 0
-- Messages of the chunk that are here already are not appended again: calls may be sent twice, come
-- late, or come from two mirrors at once.
-- @include clock
-- @include even_if_full
-- @include find
-- @include lowest
-- @include mark
-- @include sizes
local stored = redis.call('HMGET', KEYS[1], 'ttl', 'born', 'mirror_of', 'mirrored', 'sizes',
    'clock', 'retain')
local ttl = tonumber(stored[1] or nil)
if not ttl then return {'missing', '0', 0} end
if not stored[3] then return {'own', '0', 0} end
if stored[2] ~= ARGV[2] then return {'life', stored[2] or '', 0} end
local argv, messages = ARGV, KEYS[2]
local copied, its_mark, known = string.match(stored[4] or '0::0', '^(%d+):(%x*):(%d+)$')
local last, given = tonumber(copied), redis.call('GET', KEYS[3]) or '0'
if tonumber(given) ~= last then return {'foreign', string.format('%.0f', last + 1), given} end
local after, upto, floor = tonumber(argv[3]), tonumber(argv[4]), tonumber(argv[6])
if last < after then return {'at', copied, 0} end
if #argv == 8 then even_if_full(KEYS[1], ttl) end
local seen = math.max(tonumber(argv[5]), tonumber(known))
if upto > last then
  local first, count = 9, #argv
  while first < count and tonumber(argv[first]) <= last do first = first + 2 end
  local rows = (count + 1 - first) / 2
  if rows > 0 then redis.call('RPUSH', messages, unpack(argv, first)) end
  redis.call('SET', KEYS[3], argv[4])
  its_mark = rows > 0 and argv[count - 1] == argv[4] and mark(argv[count]) or ''
  -- where an id is missing, nothing is known of sizes
  local noted = rows == upto - last and sizes(stored[5], last + 1, upto, argv, first + 1, 2) or ''
  local times = clock(messages, KEYS[6], stored[6], last + 1, upto, ttl, stored[7])
  redis.call('HSET', KEYS[1], 'sizes', noted, 'clock', times, 'mirrored',
      string.format('%.0f:%s:%.0f', upto, its_mark, math.max(seen, upto)))
  if argv[8] ~= '' then redis.call('HSET', KEYS[1], 'witness', argv[8]) end
  for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ttl) end
  redis.call('PUBLISH', argv[1], argv[4])
  last = upto
elseif seen > tonumber(known) then
  redis.call('HSET', KEYS[1], 'mirrored', string.format('%s:%s:%.0f', copied, its_mark, seen))
end
local more = 0
if floor > 0 then
  local most, gone = tonumber(argv[7]), find(messages, lowest(KEYS[5], math.min(floor, last))) + 1
  if gone > most then gone, more = most, 1 end
  if gone > 0 then redis.call('LTRIM', messages, 2 * gone, -1) end
end
return {'ok', string.format('%.0f', last), more}
