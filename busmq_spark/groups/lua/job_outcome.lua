-- Begin the work of groups on jobs, or write their outcomes: once per message; a late worker is
-- refused.
-- KEYS for each job: done [field ...]; in a cluster of one job only
-- ARGV ttl_s channel texts, then for each job: group holder client outcome fields, and for each
--      field of it: value ttl_ms
--      channel: where outcomes are published; client: the channel where this one is, too, '' for
--      none. texts 1: outcomes are wanted.
--      holder: `life:message:try:ms:token:`. life, message: born of the queue, and id in it, of the
--      message that names the job. try, ms: how often that was leased, with this time, and when.
--      token: of the lease. outcome: '' to begin; else a JSON object without its opening brace.
--      fields: how many.
--      field: of the job, stored with the outcome: not where there is one, so that what comes late
--      brings none back. A full Redis refuses both, in a call
--      of one job: it refuses the first write of a script only.
-- Result {letters, outcome ...}: for each job o (it is begun, or written) | d (the group has an
--        outcome for this message, or for a later one) | l (a later lease of the message has begun
--        the work: this one counts for nothing); and with texts the outcome that there is for o and
--        d, else ''.
-- Written outcomes are published at the end: one message to each channel, with one outcome a line.
-- The field `:of:<group>` says which lease may write: its holder and, once the outcome is there,
-- `done`. If the field is missing, the first writer may write. So the first lease of a message, of
-- a job without this hash, records no begin; a later lease does.
-- @include even_if_full
local ttl, letters, texts, clients, lines, written, time, writing = ARGV[1], {}, {}, {}, {}, {},
    nil, false
local parts = '^([^:]*):(%d+):(%d+):(%d+):([^:]*):(%a*)$'

local function refusal(stored, holder)
  local its_life, its_message, its_try, its_ms, its_token, ended = string.match(stored, parts)
  local life, message, try, ms, token = string.match(holder, parts)
  if its_life ~= life then return nil end
  its_message, message = tonumber(its_message), tonumber(message)
  if its_message ~= message then return its_message > message and 'd' or nil end
  if ended == 'done' then return 'd' end
  its_try, try, its_ms, ms = tonumber(its_try), tonumber(try), tonumber(its_ms), tonumber(ms)
  if its_try > try or its_try == try and (its_ms > ms or its_ms == ms and its_token ~= token) then
    return 'l'
  end
end

-- none: what is asked once for all is not asked for each
local none, of, call = #KEYS <= 1000 and redis.call('EXISTS', unpack(KEYS)) == 0, {}, redis.call
local key, at = 1, 4
while KEYS[key] do
  local done, group, holder, client, outcome, fields = KEYS[key], ARGV[at], ARGV[at + 1],
      ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  of[group] = of[group] or ':of:' .. group
  local stored = not (none and not written[done]) and call('HGET', done, of[group])
  local letter = stored and stored ~= holder and refusal(stored, holder) or 'o'
  written[done] = true
  if letter == 'o' then
    for i = 1, fields do
      call('SET', KEYS[key + i], ARGV[at + 3 + 2 * i], 'PX', ARGV[at + 4 + 2 * i])
    end
    if not writing then even_if_full(done, ttl) end
    writing = true
    if outcome == '' then
      call('HSET', done, of[group], holder)
    else
      if not time then
        local clock = redis.pcall('TIME')
        time = string.format('{"ms":%.0f,', clock[1]
            and clock[1] * 1000 + math.floor(clock[2] / 1000) or 0)
      end
      outcome = time .. outcome
      call('HSET', done, of[group], holder .. 'done', group, outcome)
      lines[#lines + 1] = outcome
      local some = client ~= '' and clients[client]
      if some then
        some[#some + 1] = outcome
      elseif client ~= '' then
        clients[client] = {outcome}
      end
    end
    call('EXPIRE', done, ttl)
  else
    outcome = letter == 'd' and call('HGET', done, group) or ''
  end
  letters[#letters + 1], texts[#texts + 1] = letter, outcome
  key, at = key + 1 + fields, at + 5 + 2 * fields
end
if #lines > 0 then
  local all = table.concat(lines, '\n')
  call('PUBLISH', ARGV[2], all)
  for channel, some in next, clients do
    call('PUBLISH', channel, #some == #lines and all or table.concat(some, '\n'))
  end
end
return {table.concat(letters), unpack(ARGV[3] == '1' and texts or {})}
