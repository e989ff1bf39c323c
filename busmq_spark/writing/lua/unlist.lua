-- Forget queues for which a run does not stage.
-- KEYS queues
-- ARGV run queue...
-- Result 1
for i = 2, #ARGV do
  if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return 1
