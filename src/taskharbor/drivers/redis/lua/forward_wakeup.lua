-- Wakes the next handle if there is a ready job that the woken one cannot take.
--
-- KEYS  data, ready, wake
-- ARGV  queue, marker, number of the lanes that it takes, lanes, types (none: every type)
-- Returns 1 if the next one was woken

local lane_count, lanes, types = tonumber(ARGV[3]), {}, ARGV[4 + tonumber(ARGV[3])] and {}
for i = 4, 3 + lane_count do
  lanes[ARGV[i]] = true
end
for i = 4 + lane_count, #ARGV do
  types[ARGV[i]] = true
end

for line in string.gmatch(call('HGET', KEYS[1], 'Q' .. ARGV[1]) or '', '\1([^\1]*)') do
  local lane, type_ = string.match(line, '^(%Z*)%z(%Z*)%z$')
  local is_own = lanes[lane] and (not types or types[type_])
  if not is_own and #call('ZRANGEBYLEX', KEYS[2], '[' .. line, '(' .. sub(line, 1, -2) .. '\1', 'LIMIT', 0, 1) > 0 then
    if call('LLEN', KEYS[3]) == 0 then
      call('LPUSH', KEYS[3], ARGV[2])
    end
    return 1
  end
end
return 0
