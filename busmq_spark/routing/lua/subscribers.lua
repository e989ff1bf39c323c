-- Change which queues the events of which keys go to. Each change gives the table a new version
-- and is noted, so that publishers
-- ask for the version, and then for the changes only (subscribers_since.lua).
-- KEYS subscriptions
-- ARGV change version owner most field...
--      change: add | remove | gone. gone: a queue of peers is no more; each field is
--      followed by the value that it must still have.
--      version: unlike any before. owner: the peer whose rows they are ('' a program beside
--      the server, which may end all).
--      most: how many rows the peers of the owner's secret (the owner up to ~) may have.
--      field: `<pattern> <queue>`, 1,000 at most
-- Result how many of the rows the owner did not have yet (add), or had (remove, gone); -1 where
-- there would be more than `most`: nothing is done.
-- A field's value is a list of words with spaces: `@<owner>=<version>` for each peer, any other
-- word for programs.
-- `:of:<secret>`: a JSON list of `<owner> <field>`, the rows of its peers. `:log` n: the number
-- of the last change; `:log:<n % 512>`: one of the
-- last 512 changes, JSON of {version before, version after, field, value ('' it is gone)}.
local change, version, owner, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local before = redis.call('HGET', KEYS[1], ':version') or ''
local seq, lists, changed, names = nil, {}, 0, {}

local function list_of(name)
  local secret = string.match(name, '^[^~]*')
  lists[secret] = lists[secret] or cjson.decode(redis.call('HGET', KEYS[1], ':of:' .. secret)
      or '[]')
  return lists[secret], secret
end

local function store(secret)
  local list = lists[secret]
  if #list > 0 then
    redis.call('HSET', KEYS[1], ':of:' .. secret, cjson.encode(list))
  else
    redis.call('HDEL', KEYS[1], ':of:' .. secret)
  end
end

local function forget(name, field)
  local list, secret = list_of(name)
  for i = #list, 1, -1 do
    if list[i] == name .. ' ' .. field then table.remove(list, i) end
  end
  names[secret] = true
end

-- The words of a value but for that of a peer, and whether that was there.
local function without(value, name)
  local rest, had = {}, false
  for word in string.gmatch(value, '[^ ]+') do
    if string.match(word, '^@(.-)=') == name then had = true else rest[#rest + 1] = word end
  end
  return table.concat(rest, ' '), had
end

local function note(field, value)
  seq = (seq or tonumber(redis.call('HGET', KEYS[1], ':log') or 0)) + 1
  local after = version .. '.' .. seq
  redis.call('HSET', KEYS[1], ':log:' .. seq % 512, cjson.encode({before, after, field, value}))
  before = after
end

local function put(field, value)
  if value == '' then
    redis.call('HDEL', KEYS[1], field)
  else
    redis.call('HSET', KEYS[1], field, value)
  end
  note(field, value)
end

if change == 'add' and owner ~= '' then
  local list, secret = list_of(owner)
  local new = 0
  for i = 5, #ARGV do
    local _, had = without(redis.call('HGET', KEYS[1], ARGV[i]) or '', owner)
    if not had then new = new + 1 end
  end
  if #list + new > most then -- programs of versions that keep no such list may have ended some
    for i = #list, 1, -1 do
      local name, field = string.match(list[i], '^([^ ]+) (.*)$')
      local _, had = without(redis.call('HGET', KEYS[1], field) or '', name)
      if not had then table.remove(list, i) end
    end
    if #list + new > most then return -1 end
  end
  for i = 5, #ARGV do
    local rest, had = without(redis.call('HGET', KEYS[1], ARGV[i]) or '', owner)
    put(ARGV[i], (rest ~= '' and rest .. ' ' or '') .. '@' .. owner .. '=' .. version)
    if not had then
      list[#list + 1] = owner .. ' ' .. ARGV[i]
      changed = changed + 1
    end
  end
  names[secret] = true
elseif change == 'add' then
  for i = 5, #ARGV do
    local value = redis.call('HGET', KEYS[1], ARGV[i])
    local peers = string.match(value or '', '^@') and value or nil
    if peers then put(ARGV[i], '1 ' .. peers) elseif not value then put(ARGV[i], '1') end
    if not value then changed = changed + 1 end
  end
elseif owner ~= '' then
  for i = 5, #ARGV do
    local rest, had = without(redis.call('HGET', KEYS[1], ARGV[i]) or '', owner)
    if had then
      put(ARGV[i], rest)
      forget(owner, ARGV[i])
      changed = changed + 1
    end
  end
else
  for i = 5, #ARGV, change == 'gone' and 2 or 1 do
    local value = redis.call('HGET', KEYS[1], ARGV[i])
    if value and (change ~= 'gone' or value == ARGV[i + 1]) then
      put(ARGV[i], '')
      for name in string.gmatch(value, '@([^ ]-)=') do forget(name, ARGV[i]) end
      changed = changed + 1
    end
  end
end
for secret in pairs(names) do store(secret) end
if seq then redis.call('HSET', KEYS[1], ':version', before, ':log', seq) end
return changed
