-- Forgets instants of the logbook all of whose cells are past their time.
--
-- KEYS  ends; the other keys begin with it: a colon and the book, for its instants, then a colon and the instant, for the cells
-- ARGV  now, limit

local over = call('ZRANGEBYSCORE', KEYS[1], '-inf', text(clock(ARGV[1])), 'LIMIT', 0, tonumber(ARGV[2]))
for _, name in ipairs(over) do
  local book, instant = string.match(name, '^(.*):(.*)$')
  call('DEL', KEYS[1] .. ':' .. name)
  call('ZREM', KEYS[1] .. ':' .. book, instant)
  call('ZREM', KEYS[1], name)
end
return #over
