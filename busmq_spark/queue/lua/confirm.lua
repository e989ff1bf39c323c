-- Check that pushed messages are still there. Writes nothing.
-- KEYS metadata messages msgid
-- ARGV born (id mark)...
-- Result {kind, id}: kind is '' when all messages are stored; else the id is the first one of which
--        that is not so: the queue has another life (recreated), the id has another message
--        (reissued), was not given (rolled-back), or its message is stored no more (removed).
-- @include stored
-- @include mark
if redis.call('HGET', KEYS[1], 'born') ~= ARGV[1] then return {'recreated', ARGV[2]} end
local given = tonumber(redis.call('GET', KEYS[3]) or 0)
local oldest = tonumber(redis.call('LINDEX', KEYS[2], 0) or 0)
local removed
for i = 2, #ARGV, 2 do
  local id = tonumber(ARGV[i])
  local value = oldest > 0 and stored(KEYS[2], id, oldest)
  if value then
    if mark(value) ~= ARGV[i + 1] then return {'reissued', ARGV[i]} end
  elseif id > given then
    return {'rolled-back', ARGV[i]}
  else
    removed = removed or ARGV[i]
  end
end
return {removed and 'removed' or '', removed or '0'}
