-- Register a subscription, so that nothing it has still to read is dropped. With the keys of a
-- group it is that of a shared group.
-- KEYS metadata msgid messages acks [group due tries runs]
-- ARGV subscription start (earliest | latest | an id already acked | = and such an id) long_ttl_s
--      [field value ...]: settings of the shared group that replace its own
-- Result the last acked id of the subscription, as text; it keeps the one it has. With =, from its
--        reader, it goes back to the id where the queue keeps what is acknowledged, so that this is
--        not dropped before it is read again. `shared` or `ordered` where the name is that of a
--        group of this other kind, and `command:<group>` where the queue takes commands
--        (command.lua), so that <group> is its only one: nothing is done then.
-- @include even_if_full
-- @include seen
local sub, kind, back, start = ARGV[1], ':shared:' .. ARGV[1], string.match(ARGV[2], '^(=?)(.*)$')
local born = redis.call('HGET', KEYS[1], 'born') or ''
local lasting = math.max(tonumber(redis.call('HGET', KEYS[1], 'ttl') or 0) or 0, tonumber(ARGV[3]))
local stored = redis.call('HMGET', KEYS[4], ':born', sub, kind)
local ended = stored[1] and stored[1] ~= born -- positions in a life that ended
local known = not ended and stored[2]
if known and not KEYS[5] ~= not stored[3] then return stored[3] and 'shared' or 'ordered' end
if known and back ~= '' and tonumber(start) < tonumber(known)
    and redis.call('HEXISTS', KEYS[1], 'retain') == 1 then
  known = start
end
if not known then
  if not ended and redis.call('HGET', KEYS[1], 'command') then
    local all = redis.call('HGETALL', KEYS[4])
    for i = 1, #all, 2 do
      if string.sub(all[i], 1, 1) ~= ':' then return 'command:' .. all[i] end
    end
  end
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
if ended then redis.call('DEL', KEYS[4]) end
redis.call('HSET', KEYS[4], sub, known, ':born', born)
seen(KEYS[4], sub)
if KEYS[5] then
  redis.call('HSET', KEYS[4], kind, 1)
  if redis.call('HGET', KEYS[5], 'born') ~= born then
    redis.call('DEL', KEYS[6], KEYS[7], KEYS[8])
    local clock = redis.call('TIME')
    local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))
    redis.call('HSET', KEYS[5], 'born', born, 'newest', known, 'wide', 0, 'since', now)
    redis.call('HDEL', KEYS[5], 'next') -- of a version before
  end
  if ARGV[4] then redis.call('HSET', KEYS[5], unpack(ARGV, 4)) end
  redis.call('EXPIRE', KEYS[5], 7776000) -- 90 days, as with every lease
end
redis.call('EXPIRE', KEYS[4], lasting)
return known
