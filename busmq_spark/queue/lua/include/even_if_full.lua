-- even_if_full(key, ttl_s): lets the key live that long; from here on the script may store, also
-- where Redis has reached maxmemory.
-- Redis (6.2 and 7.0, scripts without flags) refuses there only the first write of a script, and
-- only one that may store more, which EXPIRE may not, even of a key that does not exist. For
-- scripts that drain, or without which nothing can be drained; never for what appends.
local function even_if_full(key, ttl_s)
  redis.call('EXPIRE', key, ttl_s)
end
