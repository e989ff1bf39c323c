-- mark(value): a short fingerprint of a message: its length, and all of it up to 1,024 bytes, of a
-- longer one 512 bytes of both ends. Two longer messages of one length that differ in the middle
-- only look the same. Redis hashes in software: all of a value of 10 KB takes it 15 us (4 so), of
-- 100 KB 0.3 ms (10 us), of 1 MB 6 ms (0.1), and planning looks at the newest message of 100 queues
-- in one call, which would hold it for 0.6 s.
local function mark(value)
  return string.sub(redis.sha1hex(#value .. ':' .. string.sub(value, 1, 512)
      .. string.sub(value, -512)), 1, 12)
end
