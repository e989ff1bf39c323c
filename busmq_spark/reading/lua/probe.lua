-- Return the facts that the reader of a range needs first. Writes nothing.
-- KEYS metadata messages
-- ARGV first id of the range, the place in the list from which on fewer values are looked at, since
--      every look walks there
-- Result {incarnation ('' when missing), oldest id ('' when empty), longest of a few values there,
--        0 when none, the noted sizes or ''} Peers note nothing. If ids are left out and all stored
--        messages come to less than 15 MB, each value counts as noted with 1 byte: any number of
--        them fits one reply. Redis computes that in 0.05 ms for 10 MB, with the right to MEMORY
--        USAGE and lists not compressed, which is the default.
local stored = redis.call('HMGET', KEYS[1], 'born', 'sizes')
local born, noted = stored[1] or '', stored[2] or ''
local oldest = redis.call('LINDEX', KEYS[2], 0)
if not oldest then return {born, '', 0, noted} end
local since, upto = string.match(noted, '^(%d+):(%d+):')
local newest, length = redis.call('LINDEX', KEYS[2], -2), redis.call('LLEN', KEYS[2])
local known = since and tonumber(since) <= tonumber(ARGV[1])
    and tonumber(upto) >= (tonumber(newest) or 0)
if not known and length > 30 and length <= 300000 then
  local bytes = 0
  -- by a few nodes of the list first: for all of them Redis walks through it
  for _, samples in ipairs({5, 0}) do
    if bytes <= 15728640 then
      bytes = tonumber(redis.pcall('MEMORY', 'USAGE', KEYS[2], 'SAMPLES', samples)) or 1 / 0
    end
  end
  if bytes <= 15728640 then noted = oldest .. ':' .. newest .. ':1:0:0' end
end
local index, longest = math.max(0, tonumber(ARGV[1]) - tonumber(oldest)), 0
for _, rows in ipairs(index >= tonumber(ARGV[2]) and {4} or {1, 15}) do
  local part = redis.call('LRANGE', KEYS[2], 2 * index, 2 * (index + rows) - 1)
  for i = 2, #part, 2 do longest = math.max(longest, #part[i]) end
  if longest > 65536 then break end
  index = index + 1
end
return {born, oldest, longest, noted}
