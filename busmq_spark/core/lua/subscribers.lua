-- Change which queues the events of which keys go to. The table gets a new version with each change, so that publishers need not read it every time.
-- KEYS subscriptions
-- ARGV change (add | remove) version (unlike any before) field... (`<pattern> <queue>`, 1,000 at most)
-- Result how many of the fields were not there yet (add), or were there (remove).
local change, changed = ARGV[1], 0
for i = 3, #ARGV do
  if change == 'add' then
    changed = changed + redis.call('HSET', KEYS[1], ARGV[i], 1)
  else
    changed = changed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
if changed > 0 then redis.call('HSET', KEYS[1], ':version', ARGV[2]) end
return changed
