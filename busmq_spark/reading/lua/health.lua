-- Return the health of some queues for an operator, in one round trip. Writes nothing.
-- KEYS metadata messages msgid acks toack, for each queue
-- Result for each queue twelve items: ttl (0: no such queue), born, maxsize, last id given, oldest
--        id, newest id, count, the id up to which all readers have acknowledged what the queue
--        keeps ('' of another queue), seconds until it expires (-1: never), the origin of a
--        mirror ('' of another queue), the error of the first key that is of another kind ('' of a
--        sound queue), and the fields and values of acks in a list of their own ('' for none).
-- A key of another kind hides no other queue: its error is part of the result.
local result = {}
for i = 1, #KEYS / 5 do
  local metadata, messages, msgid, acks, toack = unpack(KEYS, 5 * i - 4, 5 * i)
  local damage = ''
  local function ask(...)
    local reply = redis.pcall(...)
    if type(reply) ~= 'table' or not reply.err then return reply end
    if not string.find(reply.err, 'WRONGTYPE') then error(reply.err) end
    if damage == '' then damage = reply.err .. ' (' .. select(2, ...) .. ')' end
    return nil
  end
  local known = ask('HMGET', metadata, 'ttl', 'born', 'maxsize', 'done', 'mirror_of') or {}
  local items = ask('LLEN', messages) or 0
  local oldest, newest = '', ''
  if items > 0 then
    oldest, newest = ask('LINDEX', messages, 0), ask('LINDEX', messages, -2) or ''
  end
  local positions = (ask('HLEN', acks) or 0) > 0 and ask('HGETALL', acks) or ''
  local last = ask('GET', msgid) or '0'
  if ask('LLEN', toack) and items % 2 == 1 and damage == '' then
    damage = 'an odd number of items, which are ids and values in turn (' .. messages .. ')'
  end
  for _, item in ipairs({
    tonumber(known[1] or 0) or 0, known[2] or '', tonumber(known[3] or 0) or 0, last, oldest,
    newest, math.floor(items / 2), known[4] or '', redis.call('TTL', metadata), known[5] or '',
    damage, positions,
  }) do
    result[#result + 1] = item
  end
end
return result
