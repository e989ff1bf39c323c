-- Return to the head of the queue what was taken and never handed over; ids and order stay.
-- KEYS messages record
-- ARGV handed available drop ttl_s
-- handed: the id handed over last (0: none). drop 1: the record is the consumer's own and ends here.
-- Result how many messages went back.
local back, handed = 0, ARGV[1]
while true do
  local pair = redis.call('RPOP', KEYS[2], 2)
  if not pair or #pair < 2 then break end
  if pair[2] == handed then
    redis.call('RPUSH', KEYS[2], pair[2], pair[1])
    break
  end
  redis.call('LPUSH', KEYS[1], pair[1], pair[2])
  back = back + 1
end
if ARGV[3] == '1' then redis.call('DEL', KEYS[2]) end
if back > 0 then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('PUBLISH', ARGV[2], handed)
end
return back
