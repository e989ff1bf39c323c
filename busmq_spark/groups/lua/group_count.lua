-- Count the messages of a shared group that are leased, or wait to be leased again.
-- KEYS group due tries runs
-- ARGV none
-- Result {in flight, all of them}
-- @include leases
local group, due, tries, runs = unpack(KEYS)
local set, now = redis.call('HMGET', group, 'wide', 'next'), redis.call('TIME')
local wide = set[2] and 0 or tonumber(set[1] or nil) or 0
local ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
return {leases(due, tries, runs).in_flight(ms, wide, -1, math.huge),
    redis.call('ZCARD', due) + wide}
