-- Keeps a lock for longer, if it is still the caller's.
--
-- KEYS  lock
-- ARGV  its token, for how many milliseconds
-- Gives 1 when it was

if call('GET', KEYS[1]) == ARGV[1] then
  call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0
