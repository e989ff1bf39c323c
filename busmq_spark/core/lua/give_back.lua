-- Return to the head of the queue what was taken and never handed over; ids stay, and so does their order, also among what others gave back.
-- KEYS messages record [lease]
-- ARGV handed available ttl_s token
-- handed: the id handed over last (0: none). Lease: see take. A record of the taker's own ends here and is marked for late packets.
-- Result how many messages went back; -1 when the lease is not the taker's: then whoever has it restores them.
local handed, ttl = ARGV[1], ARGV[3]
if KEYS[3] and redis.call('GET', KEYS[3]) ~= ARGV[4] then return -1 end
if redis.call('LINDEX', KEYS[2], -2) == 'ended' then return 0 end
local function pop_newest(key)
  local pair = redis.call('RPOP', key, 2)
  return pair and pair[2], pair and pair[1]
end
local back = {} -- the newest first, as value and id: how LPUSH wants them
local id, value = pop_newest(KEYS[2])
while id and id ~= handed do
  back[#back + 1], back[#back + 2] = value, id
  id, value = pop_newest(KEYS[2])
end
if id then redis.call('RPUSH', KEYS[2], id, value) end
if not KEYS[3] then
  redis.call('DEL', KEYS[2])
  redis.call('RPUSH', KEYS[2], 'ended', '')
  redis.call('EXPIRE', KEYS[2], ttl)
end
if #back == 0 then return 0 end
local older, newest = {}, tonumber(back[2]) -- given back by another consumer, and older than some of ours
local head = redis.call('LINDEX', KEYS[1], 0)
while head and tonumber(head) < newest and #older < 4000 do
  local pair = redis.call('LPOP', KEYS[1], 2)
  older[#older + 1], older[#older + 2] = pair[1], pair[2]
  head = redis.call('LINDEX', KEYS[1], 0)
end
local at = #older
for i = 1, #back, 2 do
  while at > 0 and tonumber(older[at - 1]) > tonumber(back[i + 1]) do
    redis.call('LPUSH', KEYS[1], older[at], older[at - 1])
    at = at - 2
  end
  redis.call('LPUSH', KEYS[1], back[i], back[i + 1])
end
for i = at, 1, -2 do redis.call('LPUSH', KEYS[1], older[i], older[i - 1]) end
redis.call('EXPIRE', KEYS[1], ttl)
redis.call('PUBLISH', ARGV[2], '0') -- no id that a consumer could take for one it has
return #back / 2
