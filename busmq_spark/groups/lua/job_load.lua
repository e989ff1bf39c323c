-- Read fields of a job, and then forget some: in one step, and without loss when the reply is.
-- KEYS for each field: field spare
-- ARGV keep_s again, then for each field: get | forget | both
--      again 1: the call may have been executed, or may still be, under the same names of spares,
--      which are unique for ever.
-- Result for each field its value, nil when there is none or it was not asked for.
-- A forgotten field becomes the spare, for keep_s; the same call reads it from there when it is
-- repeated. The caller drops the spares after the reply to the first call. After a second call they
-- stay, also for an empty field: a first call that comes late finds them, and leaves fields alone
-- that were saved meanwhile.
-- @include even_if_full
local values = {}
for i = 1, #KEYS / 2 do
  local field, spare, how = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + 2]
  values[i] = how ~= 'forget' and (how == 'both' and redis.call('GET', spare)
      or redis.call('GET', field)) or false
  if values[i] == '' then values[i] = false end
end
-- While a slot moves, a script that uses a key again that it has emptied fails half way: so the
-- command that empties a key comes last.
for i = 1, #KEYS / 2 do
  local field, spare = KEYS[2 * i - 1], KEYS[2 * i]
  if ARGV[i + 2] ~= 'get' and redis.call('EXISTS', spare) == 0 then
    if redis.call('EXISTS', field) == 1 then
      redis.call('RENAME', field, spare)
      redis.call('EXPIRE', spare, ARGV[1])
    elseif ARGV[2] == '1' then
      even_if_full(spare, ARGV[1])
      redis.call('SET', spare, '', 'EX', ARGV[1])
    end
  end
end
return values
