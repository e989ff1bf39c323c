-- Begin the work of a group on a job, or write its outcome: once per message; a late worker is refused.
-- KEYS done [field...]
-- ARGV group life message try ms token ttl_s outcome, for each field: value ttl_ms, then [channel...]
--      life, message: born of the queue, and id in it, of the message that names the job. try, ms: how often that was leased, with this time, and when.
--      token: of the lease. outcome: '' to begin; else a JSON object without its opening brace. channel: where an outcome is published, too.
--      field: of the job, stored with the outcome: not where there is one, so that what comes late brings none back. A full Redis refuses both.
-- Result {ok, outcome} | {done, outcome} (the group has an outcome for this message, or for a later one) | {late, ''} (a later lease of the message has
--      begun the work: this one counts for nothing).
-- The field `:of:<group>` says who may write: `life:message:try:ms:token:` and, once the outcome is there, `done`.
-- @include even_if_full
local done, group, life, outcome = KEYS[1], ARGV[1], ARGV[2], ARGV[8]
local message, try, ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local of = ':of:' .. group
local stored = redis.call('HGET', done, of) or ''
local its_life, its_message, its_try, its_ms, its_token, ended = string.match(stored, '^([^:]*):(%d+):(%d+):(%d+):([^:]*):(%a*)$')
if its_life == life and tonumber(its_message) >= message then
  if tonumber(its_message) > message or ended == 'done' then return {'done', redis.call('HGET', done, group) or ''} end
  its_try, its_ms = tonumber(its_try), tonumber(its_ms)
  if its_try > try or its_try == try and (its_ms > ms or its_ms == ms and its_token ~= ARGV[6]) then return {'late', ''} end
end
for i = 2, #KEYS do redis.call('SET', KEYS[i], ARGV[2 * i + 5], 'PX', ARGV[2 * i + 6]) end
even_if_full(done, ARGV[7])
local holder = table.concat({life, ARGV[3], ARGV[4], ARGV[5], ARGV[6], ''}, ':')
if outcome == '' then
  redis.call('HSET', done, of, holder)
else
  local clock = redis.pcall('TIME')
  outcome = string.format('{"ms":%.0f,', clock[1] and clock[1] * 1000 + math.floor(clock[2] / 1000) or 0) .. outcome
  redis.call('HSET', done, of, holder .. 'done', group, outcome)
  for i = 2 * #KEYS + 7, #ARGV do redis.call('PUBLISH', ARGV[i], outcome) end
end
redis.call('EXPIRE', done, ARGV[7])
return {'ok', outcome}
