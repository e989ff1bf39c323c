-- Mark a message that a reader without a holder passes over. Other readers, and those of npm, read
-- it. It stays stored until the acks let it go, so that no other id changes.
-- KEYS metadata messages acks lease
-- ARGV reader ('' reads without a subscription) id most long_ttl_s dead (a holder of the lease that
--      is known to be dead; '' for none) mark (1: mark it, 0: only look)
-- Result {status, detail}: ok | again (it is marked already) | missing | busy holder |
--        gone | full (the reader has `most` marks)
-- The field :skip:<reader> of acks has the ids, rising, with commas between them. Ids below the
-- oldest message leave it here.
-- @include even_if_full
-- @include find
local metadata, messages, acks = KEYS[1], KEYS[2], KEYS[3]
local field, id = ':skip:' .. ARGV[1], tonumber(ARGV[2])
local known = redis.call('HMGET', metadata, 'ttl', 'born')
if not known[1] then return {'missing', ''} end
local holder = redis.call('GET', KEYS[4])
if holder and holder ~= ARGV[5] then return {'busy', holder} end
local _, stored = find(messages, id)
if not stored then return {'gone', ''} end
local of_life = redis.call('HGET', acks, ':born')
local ended = of_life and of_life ~= (known[2] or '')
local oldest, ids = tonumber(redis.call('LINDEX', messages, 0)), {id}
for each in string.gmatch(not ended and redis.call('HGET', acks, field) or '', '%d+') do
  if tonumber(each) == id then return {'again', ''} end
  if tonumber(each) >= oldest then ids[#ids + 1] = tonumber(each) end
end
if #ids > tonumber(ARGV[3]) then return {'full', ''} end
if ARGV[6] ~= '1' then return {'ok', ''} end
table.sort(ids)
for i = 1, #ids do ids[i] = string.format('%.0f', ids[i]) end
local lasting = math.max(tonumber(known[1]) or 0, tonumber(ARGV[4]))
even_if_full(acks, lasting)
if ended then redis.call('DEL', acks) end
redis.call('HSET', acks, field, table.concat(ids, ','), ':born', known[2] or '')
redis.call('EXPIRE', acks, lasting)
return {'ok', ''}
