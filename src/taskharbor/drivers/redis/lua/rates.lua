-- Rate limits: every event of a window is one member of a sorted set, so that each leaves on its own.
-- Repeats `Window` in model/limits.py.
-- Scripts that check a rate include these functions. What follows the line VERB is the script `rates` itself.

-- Removes events that left the window. If the clock went back, events of the future still count, for one window after
-- that was first noticed, so that nothing is spent twice. Returns when it was noticed, or nil; `mark` stores it.
local function rate_forget(key, rate, now)
  local mark = key .. ':behind'
  call('ZREMRANGEBYSCORE', key, '-inf', text(now - rate[2]))
  local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if not newest[2] or tonumber(newest[2]) <= now then
    call('DEL', mark)
    return nil
  end
  local since = tonumber(call('GET', mark) or nil)
  if not since or since > now then
    call('SET', mark, text(now))
    return now
  elseif now >= since + rate[2] then
    call('ZREMRANGEBYSCORE', key, '(' .. text(now), '+inf')
    call('DEL', mark)
    return nil
  end
  return since
end

-- How much of a rate is left at `now`.
local function rate_room(key, rate, now)
  rate_forget(key, rate, now)
  return math.max(rate[1] - call('ZCARD', key), 0)
end

local function rate_spend(key, count, now)
  local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  local at = text(now)
  local last = newest[1] and unpack_from('>I8', newest[1]) or 0
  if newest[2] and tonumber(newest[2]) > now then  -- their numbers are out of order then
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      last = math.max(last, (unpack_from('>I8', member)))
    end
  end
  local events = {}
  for i = 1, count do
    events[2 * i - 1] = at
    events[2 * i] = us(last + i)
  end
  each_part('ZADD', key, events, 2 * count)
end

-- Microseconds until `count` more fit; 0 if they fit now.
local function rate_wait(key, rate, count, now)
  local since = rate_forget(key, rate, now)
  local missing = count + call('ZCARD', key) - rate[1]
  if missing <= 0 then
    return 0
  end
  local leaves
  if since then
    -- Events of the future leave together, before those added after the clock went back was noticed.
    local future = call('ZCOUNT', key, text(since + rate[2]), '+inf')
    local before = call('ZCOUNT', key, '-inf', text(since))
    if missing > before and missing <= before + future then
      leaves = since
    elseif missing > before + future then
      missing = missing - future
    end
  end
  leaves = leaves or tonumber(call('ZRANGE', key, missing - 1, missing - 1, 'WITHSCORES')[2])
  return math.max(leaves + rate[2] - now, 0)
end

-- VERB: how much of a rate of the whole harbor is left, or spend some of it.
--
-- KEYS  rate
-- ARGV  now, count, per, 'room' | 'spend' | 'admit' | 'refund', how many
-- Returns how many are left ('room'), 0 when done ('spend', 'refund'), or how long to wait in us ('admit': 0 when spent)

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
