-- Extends leases, counted from now. Repeats `lease_error` and `extended` in model/transitions.py.
--
-- KEYS  data, then the leases of each queue, look from
-- ARGV  epoch, now, lease in us, number of queues, their names; then per lease: queue (0: not known), id, token,
--       worker ('' if not given), '' | 'p' progress
-- Returns {now, 'epoch'} when nothing was done; else {now, per lease: 'N' not running | 'M' another token | 'E' expired
--       | 'S' it is not of that queue | {fence, whether a cancel was requested, version, worker}}

local data, now = KEYS[1], clock(ARGV[2])
if call('HGET', data, 'e') ~= ARGV[1] then
  return { text(now), 'epoch' }
end
local expires, queue_count = now + tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = { text(now) }

local function extend(queue, id, token, worker_id, progress)
  local head = call('HGET', data, 'h' .. id)
  if not head or state_of(head) ~= RUNNING then
    return 'N'
  end
  local worker_end = 92 + byte(head, 92)
  local worker = sub(head, 93, worker_end)
  if sub(head, 76, 91) ~= token or (worker_id ~= '' and worker_id ~= worker) then
    return 'M'
  end
  if unpack_from('>I8', head, 68) <= now then
    return 'E'
  end
  local queue_end = parent_in(head) and -33 or -1
  if queue == 0 or sub(head, worker_end + 1, queue_end) ~= ARGV[4 + queue] then
    return 'S'
  end
  local state, flags, rank, version = unpack_from('>BBBI4', head)
  local fence = unpack_from('>I8', head, 52)
  if progress ~= '' then
    call('HSET', data, 'p' .. id, sub(progress, 2))
    flags = bit.bor(flags, PROGRESS)
  end
  call('ZADD', KEYS[1 + queue], text(expires), 'h' .. id)
  if expires < unpack_from('>I8', head, 68) then
    call('ZADD', KEYS[#KEYS], 'LT', text(expires), ARGV[4 + queue])
  end
  call('HSET', data, 'h' .. id, pack('>BBBI4I8', state, flags, rank, version + 1, now)
    .. sub(head, 16, 67) .. us(expires) .. sub(head, 76))
  return { text(fence), band(flags, CANCEL) ~= 0 and 1 or 0, version + 1, worker }
end

for at = 5 + queue_count, #ARGV, 5 do
  reply[#reply + 1] = extend(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
return reply
