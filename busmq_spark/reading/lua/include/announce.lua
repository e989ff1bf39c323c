-- announce(q, field, record, hold, own): notes the record of a reader, beside its lease, with the
-- last four looks at its position. It never fails: a reader must not stop since its record cannot
-- be stored, as in a Redis that is full, or without the right to TIME or to that key.
-- q: metadata messages msgid toack acks readers. field: as in the key `readers`. hold: for how many
-- ms the reader counts as present. own: the last id that the reader has finished, where it knows it
-- and it may be lower than the acked one; of a shared group the newest leased id; of a mirror the
-- newest id of its origin; '' for none.
-- fresh: another reader had the lease, so older looks do not count.
-- Stored: <seen>:<hold>:<moved>:<below>;<ms>:<position>:<newest>;... and after a blank the record.
-- Times are ms since 1970 of the server. moved: when the position was found moved last, or nothing
-- waited. below: r where own is below the acked position, so that messages are read again.
-- A hash has at most 100 records: the oldest go, and records that are a day old.
local function reader_position(q, field, own)
  local last, pos = tonumber(redis.call('GET', q.msgid) or 0) or 0, nil
  if string.sub(field, 1, 1) == 'm' then return last, math.max(last, tonumber(own) or 0), '' end
  local oldest = tonumber(redis.call('LINDEX', q.messages, 0) or nil)
  local floor, sub = oldest and oldest - 1 or last, string.match(field, '^l:(.*)$')
  if not sub then return math.max(tonumber(own) or 0, floor), last, '' end
  if sub ~= '' then
    pos = math.max(tonumber(redis.call('HGET', q.acks, sub) or nil) or 0, floor)
  else
    local known = redis.call('HMGET', q.metadata, 'acked', 'done')
    pos = math.max(floor, tonumber(known[1] or nil) or 0, tonumber(known[2] or nil) or 0)
    local taken = tonumber(redis.call('LINDEX', q.toack, 0) or nil)
    if taken then pos = taken - 1 end
  end
  own = tonumber(own) or pos
  return math.min(pos, math.max(own, floor)), last, math.max(own, floor) < pos and 'r' or ''
end

local function note_reader(q, field, record, hold, own, fresh)
  local clock = redis.pcall('TIME')
  if not clock[1] then return end
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local old = redis.call('HGET', q.readers, field)
  local pos, newest, below = reader_position(q, field, own)
  local looks, moved = {}, now -- as text: to read and write numbers costs more than all the rest
  if old and not fresh then
    local head, rest = string.match(old, '^%d+:%d+:(%d+):r?;([%d:;]+) ')
    for look in string.gmatch(rest or '', '%d+:%d+:%d+') do looks[#looks + 1] = look end
    local last = string.match(looks[#looks] or '', ':(%d+):')
    local rests = last and tonumber(last) == pos and pos < newest
    if rests then moved = math.min(now, tonumber(head)) end
  end
  local n = #looks
  if n > 1 and string.match(looks[n], '^%d+') - string.match(looks[n - 1], '^%d+') < 1000 then
    looks[n] = nil
  end
  looks[#looks + 1] = string.format('%.0f:%.0f:%.0f', now, pos, newest)
  local text = {string.format('%.0f:%.0f:%.0f:%s', now, hold, moved, below)}
  for i = math.max(1, #looks - 3), #looks do text[#text + 1] = looks[i] end
  if redis.call('HSET', q.readers, field, table.concat(text, ';') .. ' ' .. record) == 1 then
    local all, seen, count = redis.call('HGETALL', q.readers), {}, 0
    for i = 1, #all, 2 do
      local ms = tonumber(string.match(all[i + 1], '^(%d+):') or 0)
      if all[i] ~= field then seen[#seen + 1] = {ms, all[i]} end
    end
    table.sort(seen, function(a, b) return a[1] > b[1] end)
    for i, each in ipairs(seen) do
      if i >= 100 or each[1] < now - 86400000 then redis.call('HDEL', q.readers, each[2]) end
    end
  end
  redis.call('EXPIRE', q.readers, 86400)
end

local function announce(...)
  pcall(note_reader, ...)
end
