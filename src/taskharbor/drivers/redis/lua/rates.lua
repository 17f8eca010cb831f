-- Rate limits: every event of a window is one member of a sorted set, so that each leaves on its own.

-- How much of a rate is left at `now`.
local function rate_room(key, rate, now)
  call('ZREMRANGEBYSCORE', key, '-inf', text(now - rate[2]))
  return math.max(rate[1] - call('ZCARD', key), 0)
end

local function rate_spend(key, count, now)
  local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  local at = text(newest[2] and math.max(tonumber(newest[2]), now) or now)
  local last = newest[1] and unpack_from('>I8', newest[1]) or 0
  local events = {}
  for i = 1, count do
    events[2 * i - 1] = at
    events[2 * i] = us(last + i)
  end
  each_part('ZADD', key, events, 2 * count)
end

-- How long until `count` more fit, in microseconds; 0 when they fit now.
local function rate_wait(key, rate, count, now)
  call('ZREMRANGEBYSCORE', key, '-inf', text(now - rate[2]))
  local missing = count + call('ZCARD', key) - rate[1]
  if missing <= 0 then
    return 0
  end
  local last = call('ZRANGE', key, missing - 1, missing - 1, 'WITHSCORES')
  return math.max(tonumber(last[2]) + rate[2] - now, 0)
end
