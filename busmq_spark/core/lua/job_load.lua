-- Read fields of a job, and then forget some: in one step, and without loss when the reply is.
-- KEYS for each field: field spare
-- ARGV keep_ms, then for each field: get | forget | both
-- Result for each field its value, nil when there is none or it was not asked for.
-- What is forgotten becomes the spare, for keep_ms, from which the same call gets it again; the caller, who made up the names of the spares, drops
-- them when it has the reply.
local values = {}
for i = 1, #KEYS / 2 do
  local how = ARGV[i + 1]
  values[i] = how ~= 'forget' and (redis.call('GET', KEYS[2 * i - 1]) or how == 'both' and redis.call('GET', KEYS[2 * i])) or false
end
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so what empties a key comes last.
for i = 1, #KEYS / 2 do
  if ARGV[i + 1] ~= 'get' and redis.call('EXISTS', KEYS[2 * i - 1]) == 1 then
    redis.call('RENAME', KEYS[2 * i - 1], KEYS[2 * i])
    redis.call('PEXPIRE', KEYS[2 * i], ARGV[1])
  end
end
return values
