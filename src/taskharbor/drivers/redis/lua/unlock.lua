-- Releases a lock if the caller still holds it.
--
-- KEYS  lock
-- ARGV  its token
-- Returns 1 if it did

if call('GET', KEYS[1]) == ARGV[1] then
  return call('DEL', KEYS[1])
end
return 0
