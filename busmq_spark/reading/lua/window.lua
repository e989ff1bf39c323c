-- Messages of a list from a position on, bounded by bytes: for lists where it is not known how long
-- values are. Writes nothing.
-- KEYS messages
-- ARGV index (0-based, in messages) most most_bytes widest
-- Result flat pairs id, value. Stops after the message that reaches most_bytes.
-- @include run
return run(KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
