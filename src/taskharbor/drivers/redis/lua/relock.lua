-- Extends a lock if the caller still holds it.
--
-- KEYS  lock
-- ARGV  its token, for how many milliseconds
-- Returns 1 if it does

if call('GET', KEYS[1]) == ARGV[1] then
  call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0
