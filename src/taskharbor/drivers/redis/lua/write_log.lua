-- Writes cells of the logbook and deletes others, in one step.
--
-- KEYS  ends, then whatever the cells name by number: the instants of a book, the cells of an instant
-- ARGV  '1' to let the server forget cells by its own clock, number of cells to delete, per cell: instants, cells, book, at, by;
--       then per cell to write: the same, until, until and data as they are stored
-- An instant whose last cell went stays among those of its book until it is pruned.

local ends = KEYS[1]
local at = 3
for _ = 1, tonumber(ARGV[2]) do
  local cells = KEYS[tonumber(ARGV[at + 1])]
  if call('HDEL', cells, ARGV[at + 4]) == 1 and call('EXISTS', cells) == 0 then
    call('ZREM', KEYS[tonumber(ARGV[at])], ARGV[at + 3])
    call('ZREM', ends, ARGV[at + 2] .. ':' .. ARGV[at + 3])
  end
  at = at + 5
end
while at <= #ARGV do
  local instants, cells = KEYS[tonumber(ARGV[at])], KEYS[tonumber(ARGV[at + 1])]
  local book, instant, by, over = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  call('HSET', cells, by, ARGV[at + 6])
  call('ZADD', instants, instant, instant)
  call('ZADD', ends, 'GT', over, book .. ':' .. instant)
  if ARGV[1] == '1' then
    local seconds = text(math.floor(tonumber(over) / 1000000) + 1)
    if call('TTL', cells) < 0 then
      call('EXPIREAT', cells, seconds)
    else
      call('EXPIREAT', cells, seconds, 'GT')
    end
  end
  at = at + 7
end
return 'done'
