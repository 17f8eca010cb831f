-- Of many queues those in which a claim may find something now, and from when on it may find more.
--
-- KEYS  look from
-- ARGV  now, '' | the instant behind which the next one is asked for, the names, each between two line feeds
-- Returns {now, the next instant or '', the queues in their order}

local now, names = clock(ARGV[1]), ARGV[3]
local MOST = 200 -- of all queues; where more may have something, each name is looked up
local found, places = {}, {}

local function place_of(queue)
  return string.find(names, '\n' .. queue .. '\n', 1, true)
end

if call('ZCOUNT', KEYS[1], '-inf', text(now)) <= MOST then
  for _, queue in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now))) do
    places[queue] = place_of(queue)
    found[#found + 1] = places[queue] and queue
  end
  table.sort(found, function(one, other)
    return places[one] < places[other]
  end)
else
  local asked = {}
  for queue in string.gmatch(names, '[^\n]+') do
    asked[#asked + 1] = queue
  end
  for first = 1, #asked, 3000 do
    local last = math.min(first + 2999, #asked)
    for i, from in ipairs(call('ZMSCORE', KEYS[1], unpack(asked, first, last))) do
      if from and tonumber(from) <= now then
        found[#found + 1] = asked[first + i - 1]
      end
    end
  end
end

local following = ''
if ARGV[2] ~= '' then
  local later = call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, MOST)
  for i = 1, #later, 2 do
    following = later[i + 1]
    if place_of(later[i]) then
      break
    end
    following = i + 1 == 2 * MOST and following or '' -- of others: no sooner than the last of them
  end
end
return { text(now), following, unpack(found) }
