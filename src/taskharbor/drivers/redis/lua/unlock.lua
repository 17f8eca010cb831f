-- Gives a lock back, if it is still the caller's.
--
-- KEYS  lock
-- ARGV  its token
-- Gives 1 when it was

if call('GET', KEYS[1]) == ARGV[1] then
  return call('DEL', KEYS[1])
end
return 0
