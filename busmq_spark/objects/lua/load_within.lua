-- Every field of a hash, unless they take too much: then nothing is loaded but the names.
-- KEYS hash
-- ARGV most (bytes of names and values) most_fields
-- Result {size, flat pairs}; {size, false} when it is over most; size is then the count so far.
local count = redis.call('HLEN', KEYS[1])
if count > tonumber(ARGV[2]) then return {tonumber(ARGV[1]) + 1, false} end
local size, most = 0, tonumber(ARGV[1])
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  size = size + #name + redis.call('HSTRLEN', KEYS[1], name)
  if size > most then return {size, false} end
end
return {size, redis.call('HGETALL', KEYS[1])}
