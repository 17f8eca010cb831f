-- Cells of one book of the logbook, by instant. Cells of one instant come together and in no order.
--
-- KEYS  the instants of the book; the key of an instant's cells is this, a colon and the instant
-- ARGV  now, since, until, enough, '1' for the newest first
-- Returns {instant, writer, what is stored} of each; no more instants than it takes to have enough

local now, enough, newest = clock(ARGV[1]), tonumber(ARGV[4]), ARGV[5] == '1'
local reply, found, from = {}, 0, 0
repeat
  local some
  if newest then
    some = call('ZREVRANGEBYSCORE', KEYS[1], '(' .. ARGV[3], ARGV[2], 'LIMIT', from, 100)
  else
    some = call('ZRANGEBYSCORE', KEYS[1], ARGV[2], '(' .. ARGV[3], 'LIMIT', from, 100)
  end
  from = from + 100
  for _, instant in ipairs(some) do
    local cells = found < enough and call('HGETALL', KEYS[1] .. ':' .. instant) or {}
    for i = 1, #cells, 2 do
      if unpack_from('>I8', cells[i + 1]) > now then
        reply[#reply + 1] = { instant, cells[i], cells[i + 1] }
        found = found + 1
      end
    end
  end
until #some < 100 or found >= enough
return reply
