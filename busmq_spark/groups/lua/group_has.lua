-- Which messages a shared group has leased, or is to lease again.
-- KEYS group due tries runs
-- ARGV id ...
-- Result for each id 1, or 0 where the message is settled, or was never leased
-- @include leases
local group, due, tries, runs = unpack(KEYS)
local set, found = redis.call('HMGET', group, 'wide', 'next'), {}
local wide, book = set[2] and 0 or tonumber(set[1] or nil) or 0, leases(due, tries, runs)
book.read(ARGV)
for i, id in ipairs(ARGV) do found[i] = book.of(tonumber(id), wide) and 1 or 0 end
return found
