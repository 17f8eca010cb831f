-- The places in line of the next ready jobs of a queue, for a claim over several slots of a cluster.
--
-- KEYS  data, ready, later
-- ARGV  now, queue, how many of each line, number of lanes, lanes, types (none: every type)
-- Returns of every job that a claim might take: the number of its lane in one byte, then rank, time and seq, as they are
--       packed in its entry; in no set order

local now, limit, lane_count = clock(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lanes, types, found = {}, ARGV[5 + lane_count] and {}, {}
for i = 1, lane_count do
  lanes[ARGV[4 + i]] = string.char(i)
end
for i = 5 + lane_count, #ARGV do
  types[ARGV[i]] = true
end

local function look_at(entries, lane)
  for _, entry in ipairs(entries) do
    found[#found + 1] = lane .. sub(entry, -33, -17)
  end
end

local function lane_of(line)
  local lane, type_ = string.match(line, '^(%Z*)%z(%Z*)%z$')
  return (not types or types[type_]) and lanes[lane]
end

for line in string.gmatch(call('HGET', KEYS[1], 'Q' .. ARGV[2]) or '', '\1([^\1]*)') do
  local lane = lane_of(line)
  if lane then
    look_at(call('ZRANGEBYLEX', KEYS[2], '[' .. line, '(' .. sub(line, 1, -2) .. '\1', 'LIMIT', 0, limit), lane)
  end
end
for _, entry in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', text(now), 'LIMIT', 0, 1000)) do
  local lane = lane_of(sub(entry, 1, -34))
  if lane then
    look_at({ entry }, lane)
  end
end
return found
