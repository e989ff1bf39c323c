-- The commit point of a batch: from here on exactly these staged lists are what the batch appends,
-- whatever a later attempt stages.
-- KEYS record
-- ARGV batch manifest ttl_s query span epoch [least]
--      least: a batch that the sink has recorded before; -1: none is known
-- Result {batch, manifest, span} that holds now: the given one, or the one recorded before for the
--        same batch; {batch} when the sink is ahead: a later one is recorded, or this one by
--        another query, whose rows must not be taken for ours ('' is every query); {} when a later
--        run of the sink has begun, which removes what this one has staged; {older, found} when
--        the record is older than `least`: Redis has lost it.
local batch = tonumber(redis.call('HGET', KEYS[1], 'batch') or -1)
local given = tonumber(ARGV[1])
if batch > given then return {string.format('%.0f', batch)} end
if batch == given and ARGV[4] ~= '' and redis.call('HGET', KEYS[1], 'query') ~= ARGV[4] then
  return {ARGV[1]}
end
if batch < given then
  if tonumber(ARGV[6]) < tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0) then return {} end
  if batch < tonumber(ARGV[7] or -1) then return {'older', string.format('%.0f', batch)} end
  redis.call('HSET', KEYS[1], 'batch', ARGV[1], 'manifest', ARGV[2], 'query', ARGV[4], 'span',
      ARGV[5])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {ARGV[1], redis.call('HGET', KEYS[1], 'manifest'), redis.call('HGET', KEYS[1], 'span') or ''}
