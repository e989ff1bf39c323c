-- leases(due, tries, runs) -> book: the leases of a shared group as one call sees and changes them.
-- A lease is of messages with consecutive ids, and its name is the id of the first of them, so that
-- what is leased together costs as much as one message. No message is in two leases, also not in
-- those that have ended or wait to be tried again: a message up to the newest leased id that is in
-- no lease is settled.
-- due: name -> ms, above 0 the end of the lease, below 0 (negated) when its messages may be leased
-- again.
-- tries: name -> try:token:first:count; without count it is 1, as it was when each message had a
-- lease of its own.
--        It also has the notes of group_settle.lua, by<number>.
-- runs: name -> name, of the leases of more than one message; so the one that a message is in is
-- found.
-- A lease here: id, last (of its messages), try, token, first, score (as in due) once it is known
-- or new, and after: the part that was cut off after it.
-- Numbers are given to Redis as they are: it writes a whole number of up to 53 bits with all its
-- digits.
-- The fields newest, wide and next of a group as numbers newest and wide. wide: how many messages
-- are in leases, beyond one for each lease. next: the name of newest when each message had a lease
-- of its own; programs of that time, which know no others, find no group any more, and leave no
-- runs.
local function counted(group, runs, newest, wide, before)
  if not before then return tonumber(newest), tonumber(wide or nil) or 0 end
  redis.call('HSET', group, 'newest', before, 'wide', 0)
  redis.call('HDEL', group, 'next')
  redis.call('DEL', runs)
  return tonumber(before), 0
end

local function leases(due, tries, runs)
  local book, known, stored, changed = {}, {}, {}, {} -- stored: as the call found them

  -- Reads the leases with these names, unless they are known.
  function book.read(names)
    for from = 1, #names, 1000 do
      local records = redis.call('HMGET', tries, unpack(names, from, math.min(from + 999, #names)))
      for i, record in ipairs(records) do
        local id = tonumber(names[from + i - 1])
        if known[id] == nil then
          local try, token, first, count = string.match(record or '',
              '^(%d+):([^:]*):(%d+):?(%d*)$')
          local more = try and (tonumber(count) or 1) - 1
          known[id] = try and {id = id, last = id + more, more = more, try = tonumber(try),
              token = token, first = first} or false
          stored[id] = known[id]
        end
      end
    end
  end

  -- Reads those whose names are among the ids from..upto.
  function book.between(from, upto)
    local names = {}
    for id = from, upto do
      if known[id] == nil then names[#names + 1] = id end
    end
    book.read(names)
  end

  -- Those with these names, which due has.
  function book.named(names)
    local found = {}
    book.read(names)
    for i, name in ipairs(names) do
      local id = tonumber(name)
      if not known[id] then
        known[id] = {id = id, last = id, more = 0, try = 0, token = '', first = '0'}
        stored[id] = known[id]
      end
      found[i] = known[id]
    end
    return found
  end

  -- Whether a lease begins with this message. The next ones are asked for along with it, up to
  -- upto, the more of them the more often this is called.
  local ahead = 0
  function book.begins(id, upto)
    if known[id] == nil then
      book.between(id, math.min(upto, id + ahead))
      ahead = math.min(999, 4 * ahead + 3)
    end
    return known[id]
  end

  local around -- the last lease that one was in, as the call found it
  -- The lease that the message is in; nil when it is settled, or was never leased.
  function book.of(id, wide)
    if known[id] == nil then book.read({id}) end
    if known[id] or wide == 0 then return known[id] or nil end
    if not around or id < around.id or id > around.id + around.more then
      local name = redis.call('ZREVRANGEBYSCORE', runs, id, '-inf', 'LIMIT', 0, 1)[1]
      if not name then return nil end
      book.read({name})
      around = stored[tonumber(name)] or known[tonumber(name)]
    end
    local lease = around
    while lease and lease.last < id do lease = lease.after end
    return lease and lease.id <= id and not lease.dropped and lease or nil
  end

  function book.score(lease)
    lease.score = lease.score or tonumber(redis.call('ZSCORE', due, lease.id) or nil) or -1
    return lease.score
  end

  function book.put(lease)
    known[lease.id], changed[lease.id] = lease, true
    return lease
  end

  function book.drop(lease)
    known[lease.id], changed[lease.id], lease.dropped = false, true, true
  end

  -- Makes its messages first..last a lease of their own.
  function book.cut(lease, first, last)
    if first == lease.id and last == lease.last then return book.put(lease) end
    local function part(from, upto)
      local piece = {id = from, last = upto, more = upto - from, try = lease.try,
          token = lease.token, first = lease.first, score = book.score(lease)}
      piece.after, lease.after = lease.after, piece
      return book.put(piece)
    end
    if last < lease.last then part(last + 1, lease.last) end
    lease.last = last
    if first == lease.id then return book.put(lease) end
    local piece = part(first, last)
    lease.last = first - 1
    book.put(lease)
    return piece
  end

  -- How many messages are in flight at ms (text). Where they are `least` or fewer, or `most` or
  -- more: a number that is so, too, since others cost more.
  function book.in_flight(ms, wide, least, most)
    local count = redis.call('ZCOUNT', due, '(' .. ms, '+inf')
    if count + wide <= least or count >= most or wide == 0 or count == 0 then return count end
    local function beyond(names, ends_after) -- one message for each lease
      local found = 0
      for _, lease in ipairs(book.named(names)) do
        if not ends_after or book.score(lease) > ends_after then
          found = found + lease.last - lease.id
        end
      end
      return found
    end
    -- Read are those in flight, all others, or those of more than one message, whatever is fewest.
    local others = redis.call('ZCARD', due) - count
    if redis.call('ZCARD', runs) < math.min(count, others) then
      return count + beyond(redis.call('ZRANGE', runs, 0, -1), tonumber(ms))
    end
    if others < count then
      return count + wide - beyond(redis.call('ZRANGEBYSCORE', due, '-inf', ms))
    end
    return count + beyond(redis.call('ZRANGEBYSCORE', due, '(' .. ms, '+inf'))
  end

  -- Stores what has changed, but for what is to go: how many leases that are, and by how much
  -- `wide` grows. Nothing else is asked for behind it.
  local gone, single = {}, {}
  function book.save()
    local scores, records, multiple, wider = {}, {}, {}, 0
    for id in next, changed do
      local lease, old = known[id], stored[id]
      local more, before = lease and lease.last - id or 0, old and old.more or 0
      wider = wider + more - before
      if lease then
        if lease.score then scores[#scores + 1], scores[#scores + 2] = lease.score, id end
        records[#records + 1], records[#records + 2] = id, lease.try .. ':' .. lease.token .. ':'
            .. lease.first .. (more > 0 and ':' .. more + 1 or '')
      elseif old then
        gone[#gone + 1] = id
      end
      if more > 0 and before == 0 then
        multiple[#multiple + 1], multiple[#multiple + 2] = id, id
      elseif more == 0 and before > 0 then
        single[#single + 1] = id
      end
    end
    if #scores > 0 then redis.call('ZADD', due, unpack(scores)) end
    if #records > 0 then redis.call('HSET', tries, unpack(records)) end
    if #multiple > 0 then redis.call('ZADD', runs, unpack(multiple)) end
    return #gone, wider
  end

  -- Lets go what is to go. While a slot moves, a script that uses a key again that it has emptied
  -- fails half way: so what may empty a key comes last.
  function book.close()
    if #gone > 0 then
      redis.call('ZREM', due, unpack(gone))
      redis.call('HDEL', tries, unpack(gone))
    end
    if #single > 0 then redis.call('ZREM', runs, unpack(single)) end
  end

  return book
end
