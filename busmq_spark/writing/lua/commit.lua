-- Append rows of a recorded batch to one queue: moves one chunk from the head of a staged list to
-- the end of the queue. In the same step writes the progress, which says how far the batch is in
-- this queue. Nothing is moved unless the progress is where the caller believes it to be (nth,
-- moved): two drivers that commit the same batch at the same time append each row once. With the
-- last row, the lists of earlier batches are deleted.
-- KEYS metadata messages msgid toack   the queue
--      sinks                           hash sink -> progress: <batch>:<nth>:<moved> or
--                                      <batch>:done, then ;<recorded_by>;<whole> where known
--      stage                           the staged list
--      stages                          hash attempt -> epoch: the staged lists of this sink for
--                                      this queue
--      clock acks bytes                what every append needs besides (include/append.lua)
-- ARGV available     the channel on which an append is published
--      sink batch    whose batch, and its number
--      nth           which of the staged lists of this queue it is, from 0
--      moved         rows of this list that are appended already
--      count         rows to append now, at most
--      total         rows of this list that belong to the batch, from its head. Rows after them
--                    came late, from a connection that was closed: they are never read, and deleted
--                    with the list
--      last          1: it is the last list of this queue
--      long_ttl_s    the least lifetime of progress and of the rest of the list
--      prefix        the prefix of the keys of staged lists of this queue
--      recorded_by   epoch of the run that has recorded the batch; 0: not known
--      void          progress of records that were made by runs with lower epochs counts for
--                    nothing
--      whole         digest of all rows of the batch for this queue; '': not known
-- Result {status, a, b}; an error reply where the queue is a mirror, or its ids are used up. Only
--        `moved` has changed anything:
--      moved rows 0     so many were appended; fewer than count where the queue has no more room
--      at nth moved     the progress is there: go on from there; nth -1: the batch is done
--      stale batch 0    this queue has progress of that later batch
--      other epoch 0    this queue has progress of this batch number, or a later one, by another
--                       record, which the run of that epoch made: Redis has lost that record since,
--                       or the run was declared void
--      missing 0 0      there is no such queue
--      lost rows 0      the list has only so many rows left, and the batch needs more
--      full maxsize 0   the queue has no room
-- @include append

-- Deletes the lists of earlier batches: the sink has recorded this batch, so they are never
-- committed. Lists of this batch stay: another run may be staging it, which must not fail.
local function tidy(stages, prefix, batch)
  local found = redis.call('HGETALL', stages)
  for i = 1, #found, 2 do
    local attempt = found[i]
    local of = tonumber(string.match(attempt, ':(%d+):%d+:%x+$'))
    if of and of < batch then redis.call('UNLINK', prefix .. attempt) end
    if not of or of < batch or redis.call('EXISTS', prefix .. attempt) == 0 then
      redis.call('HDEL', stages, attempt)
    end
  end
end
local metadata, messages, msgid, toack, sinks, stage, stages = unpack(KEYS)
local sink, batch, nth, moved, count, total = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]),
    tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local last, long_ttl_s, prefix, recorded_by, void, whole = ARGV[8] == '1', tonumber(ARGV[9]),
    ARGV[10], ARGV[11], tonumber(ARGV[12]), ARGV[13]
local progress = redis.call('HGET', sinks, sink)
local at_nth, at_moved = 0, 0
if progress then
  local b, s, m, made, digest = string.match(progress, '^(%d+):(%w+):?(%d*);?(%d*);?(.*)$')
  if not (tonumber(made) and tonumber(made) < void) then
    local other = tonumber(made) and recorded_by ~= '0' and made ~= recorded_by
    local same = s == 'done' and digest ~= '' and digest == whole
    if other and tonumber(b) >= batch and not (tonumber(b) == batch and same) then
      return {'other', tonumber(made), 0}
    end
    if tonumber(b) > batch then return {'stale', tonumber(b), 0} end
    if tonumber(b) == batch then
      if s == 'done' then return {'at', -1, 0} end
      at_nth, at_moved = tonumber(s), tonumber(m)
    end
  end
end
if at_nth ~= nth or at_moved ~= moved then return {'at', at_nth, at_moved} end
local stored, room = opened()
if not stored then return {'missing', 0, 0} end
if stored.err then return stored end
local ttl = tonumber(stored[1])
local left = redis.call('LLEN', stage)
if left < total - moved then return {'lost', left, 0} end
count = math.min(count, room)
if count <= 0 and total > moved then return {'full', tonumber(stored[2]), 0} end
-- a queue that peers overfilled has less than no room, even for an empty list
count = math.max(0, math.min(count, total - moved))
local after, new
if moved + count < total then
  after = string.format('%.0f:%d:%d', batch, nth, moved + count)
elseif last then
  after = string.format('%.0f:done', batch)
else
  after = string.format('%.0f:%d:0', batch, nth + 1)
end
if count > 0 then
  new = append(stored, 8, redis.call('LRANGE', stage, 0, count - 1), 1, count)
  if new.err then return new end
  redis.call('LTRIM', stage, count, -1)
  redis.call('EXPIRE', stage, long_ttl_s)
else
  for _, key in ipairs({metadata, messages, msgid, toack}) do redis.call('EXPIRE', key, ttl) end
end
if moved + count >= total then redis.call('UNLINK', stage) end
if recorded_by ~= '0' then after = after .. ';' .. recorded_by .. ';' .. whole end
redis.call('HSET', sinks, sink, after)
redis.call('EXPIRE', sinks, math.max(ttl, long_ttl_s))
if moved + count >= total and last then tidy(stages, prefix, batch) end
if new then drop(stored, 8, new) end
return {'moved', count, 0}
