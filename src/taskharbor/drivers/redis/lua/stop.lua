-- Stops waiting children of a parent that is being stopped, many at once, and writes down how far it came. Repeats `_stop_child`
-- in drivers/families.py for children that have nothing but a parent and no history. It ends at the first other one, and
-- before the last open one: a unit of work stops those.
--
-- KEYS  data, relatives; then per queue: list, ready, later, done
-- ARGV  epoch, now, number of what is owed, that as it was read, most children, story and family of a stopped child, the
--       names of the queues
-- Returns 'epoch', or how many it has stopped

local data, now = KEYS[1], clock(ARGV[2])
local field, owed, story, family = 'w' .. ARGV[3], ARGV[4], ARGV[6], ARGV[7]
if call('HGET', data, 'e') ~= ARGV[1] then
  return 'epoch'
end
local parent, cursor8 = sub(owed, 2, 17), sub(owed, 18)
local counts, open = unpack(call('HMGET', data, 'f' .. parent, 'O' .. parent))
if call('HGET', data, field) ~= owed or not counts or band(byte(counts, 1), IS_STOPPING) == 0 then
  return 0
end
local most = math.min(tonumber(ARGV[5]), tonumber(open or 0) - 1)

local numbers, by_queue = {}, {}
for i = 8, #ARGV do
  numbers[ARGV[i]] = i - 7
end
local function key_of(queue, part)
  return KEYS[2 + (queue - 1) * 4 + part]
end
local LIST, READY, LATER, DONE = 1, 2, 3, 4

local now8, first_end = us(now), string.rep('\0', 20) .. us(now) .. string.rep('\0', 17)
local writes, w, stopped = {}, 0, 0

-- Repeats `stopped` and `finished` in model/family_steps.py: all but story and family, which are the same for all.
local function stop(id, head, body)
  local line, name = line_in(body)
  local queue = numbers[name]
  if not queue then
    return false
  end
  local set = by_queue[queue] or { list = {}, entries = {}, places = {} }
  by_queue[queue] = set
  local _, _, rank, version = unpack_from('>BBBI4', head)
  local seq, created, run_at = unpack_from('>I8I8I8', head, 24)
  local front = pack('>BBBI4I8', COMPLETED + 2 + CHILD + FAMILY, STORY, rank, version + 1, now) .. sub(head, 16, 47)
  local was_started = #head > 79
  local back = was_started and sub(head, 48, 67) .. now8 .. sub(head, 76) or first_end .. sub(head, -32)
  writes[w + 1], writes[w + 2], writes[w + 3], writes[w + 4] = 'h' .. id, front .. back, 's' .. id, story
  writes[w + 5], writes[w + 6] = 'f' .. id, family
  w = w + 6
  local n = #set.places + 1
  set.list[2 * n - 1], set.list[2 * n] = text(4 * SECTION + seq), 'h' .. id
  set.entries[n] = line .. string.char(rank) .. us(run_at > 0 and run_at - 1 or created) .. us(seq) .. id
  set.places[n] = 'h' .. id
  return true
end

-- Stops one child, or passes over one that is over; false where a unit of work must go on.
local function go_on(id, head, body)
  if not (head and body) or state_of(head) >= COMPLETED then
    return true
  elseif stopped >= most or byte(head, 1) ~= WAITING + CHILD or byte(head, 2) ~= 0 or not stop(id, head, body) then
    return false
  end
  stopped = stopped + 1
  return true
end

local prefix = 'c' .. parent
local members = call('ZRANGEBYLEX', KEYS[2], '(' .. prefix .. cursor8 .. string.rep('\255', 16),
  '(' .. prefix .. string.rep('\255', 24), 'LIMIT', 0, math.max(most, 0))
local asked = {}
for i, member in ipairs(members) do
  asked[2 * i - 1], asked[2 * i] = 'h' .. sub(member, 26), 'b' .. sub(member, 26)
end
local found = asked[1] and call('HMGET', data, unpack(asked)) or {}
for i, member in ipairs(members) do
  if not go_on(sub(member, 26), found[2 * i - 1], found[2 * i]) then
    break
  end
  cursor8 = sub(member, 18, 25)
end
if stopped == 0 then
  return 0
end

local cancelled = unpack_from('>I4', counts, 18) + stopped
writes[w + 1], writes[w + 2] = 'f' .. parent, sub(counts, 1, 17) .. pack('>I4', cancelled) .. sub(counts, 22)
writes[w + 3], writes[w + 4] = field, sub(owed, 1, 17) .. cursor8
each_part('HSET', data, writes, w + 4)
call('HINCRBY', data, 'O' .. parent, -stopped)
for queue, set in pairs(by_queue) do
  local count = #set.places
  each_part('ZADD', key_of(queue, LIST), set.list, 2 * count)
  if call('ZREM', key_of(queue, READY), unpack(set.entries)) < count then
    call('ZREM', key_of(queue, LATER), unpack(set.entries))
  end
  for from = 1, count, 500 do
    local together = table.concat(set.places, '', from, math.min(from + 499, count))
    call('ZADD', key_of(queue, DONE), '0', 'X' .. now8 .. together)
  end
end
return stopped
