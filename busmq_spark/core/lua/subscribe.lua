-- Register a subscription, so that nothing it has still to read is dropped.
-- KEYS metadata msgid messages acks
-- ARGV subscription start (earliest | latest | an id already acked) long_ttl_s
-- Result the last acked id of the subscription, as text; it keeps the one it has.
-- @include even_if_full
-- @include seen
local sub, start = ARGV[1], ARGV[2]
local born = redis.call('HGET', KEYS[1], 'born') or ''
local lasting = math.max(tonumber(redis.call('HGET', KEYS[1], 'ttl') or 0) or 0, tonumber(ARGV[3]))
local of = redis.call('HGET', KEYS[4], ':born')
if of and of ~= born then redis.call('DEL', KEYS[4]) end -- positions in a life that ended
local known = redis.call('HGET', KEYS[4], sub)
if not known then
  local given = redis.call('GET', KEYS[2]) or '0'
  if start == 'latest' then
    known = given
  elseif start == 'earliest' then
    local oldest = redis.call('LINDEX', KEYS[3], 0)
    known = oldest and string.format('%.0f', tonumber(oldest) - 1) or given
  else
    known = start
  end
end
even_if_full(KEYS[4], lasting)
redis.call('HSET', KEYS[4], sub, known, ':born', born)
seen(KEYS[4], sub)
redis.call('EXPIRE', KEYS[4], lasting)
return known
