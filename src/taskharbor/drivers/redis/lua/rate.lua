-- A rate of the harbor, seen from its home: how much is left, or spend some of it.
--
-- KEYS  rate
-- ARGV  now, count, per, 'room' | 'spend' | 'admit' | 'refund', how many
-- Gives how many are left ('room'), 0 when done ('spend', 'refund'), or how long to wait in us ('admit': 0 when spent)

local now, rate, many = clock(ARGV[1]), { tonumber(ARGV[2]), tonumber(ARGV[3]) }, tonumber(ARGV[5])
if ARGV[4] == 'room' then
  return rate_room(KEYS[1], rate, now)
elseif ARGV[4] == 'refund' then
  call('ZREMRANGEBYRANK', KEYS[1], -many, -1)
  return 0
elseif ARGV[4] == 'admit' then
  local wait = rate_wait(KEYS[1], rate, many, now)
  if wait > 0 then
    return wait
  end
end
rate_spend(KEYS[1], many, now)
return 0
