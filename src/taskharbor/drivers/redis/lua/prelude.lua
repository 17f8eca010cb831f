-- Included in every script: the record format and the clock. encoding.py has the same in Python.
--
-- A job is fields of the data hash: h<id> its state, b<id> what was enqueued, and only if there are any:
-- r<id> its result, p<id> its progress, s<id> its story (errors, history, flags), K<id> its scoped key, I<id> its
-- scoped idempotency keys, A<id> its aliases, c<id> its copy; of a copy o<id> its original and
-- v<id> the worker that it must not meet. A key is scoped by its queue: <queue>\0<key>.
-- Only of jobs with the bit FAMILY in their state byte (family_fields.py): B<id> the bonds (flags, deadline, the number and
-- the ids of the jobs that it comes after, then MessagePack), f<id> the family (flags, waits for, total, failed, excused,
-- cancelled, followers, then MessagePack), O<id> how many children are open, N<id> how many notes and bytes of them,
-- N<id><number> the name of a note, M<id><name> when it was written and its data,
-- P<id> the children that a parked job waits for; w<number> something that is owed; t when the next claim must look
-- for what is owed or late (0: now).
-- Besides: h<id> of an alias is a 9 and the job's id; k<scoped key> the jobs of a key
-- ('w' waiting, 'r' running, 'b' blocked, each with its id); i<scoped key> the job of an idempotency key and when
-- that is forgotten (8 bytes of zero: not yet); R<queue> the settings of a queue, R* of the harbor; Q<queue> the
-- lines of a listed queue, each behind a \1; n the last seq; e the epoch.
--
-- A line is a lane and a type: <lane>\0<type>\0. Every line with a ready job is among those of its queue; one that a
-- claim finds empty is struck out, and comes back with its next job.
-- Lists and leases name a job by the field of its head, h<id>: scripts have that string anyway, and making strings is
-- what costs most in them. In a list, the score of a job is its seq, plus SECTION for blocked, twice that for completed,
-- then failed, cancelled. An entry of `done` is a sign, when, and one job or several that were acked together. Those of
-- a job that was started again meanwhile, or deleted, stay there until their time has come.
--
-- A head: 1 state, 2 flags, 3 rank, 4 version, 8 updated, 16 attempts, 20 stalls, 24 seq, 32 created, 40 run_at
-- (plus 1, so that 0 means none); when it was ever started or is over: 48 starts, 52 fence, 60 started, 68 until
-- (the lease, or the end), 76 token, 92 length of the worker's name, 93 the worker, then its queue. With the bit CHILD in
-- the state byte its last 32 bytes are the ids of root and parent.
-- Numbers are packed as integers and never go through a text with an exponent: microseconds stay exact.

local WAITING, BLOCKED, RUNNING, COMPLETED, ALIAS = 0, 1, 2, 3, 9
local KEYED, REMEMBERED, COPY, CANCEL, COPIED, PROGRESS, ALIASED, STORY = 1, 2, 4, 8, 16, 32, 64, 128
local CHILD, FAMILY = 32, 64 -- added to the state
local IS_SPARED, HAS_DEADLINE, BY_OTHERS = 1, 2, 4 -- the first byte of the bonds
local IS_STOPPING, SPARES, IS_DONE, ENDS_WELL = 1, 2, 4, 8 -- the first byte of the family
local call, pack, unpack_from, sub, byte = redis.call, struct.pack, struct.unpack, string.sub, string.byte
local band = bit.band
local SECTION = 1125899906842624 -- two to the power of 50

-- The clock that decides: the caller's `now`, else the server's.
local function clock(given)
  if given ~= '' then
    return tonumber(given)
  end
  local now = call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

-- The state of a head, and whether it has fields of a family: then there is more to look at.
local function state_of(head)
  local state = byte(head, 1)
  if state >= CHILD then
    return band(state, CHILD - 1), state >= FAMILY
  end
  return state, false
end

-- The parent that a head names, or nil.
local function parent_in(head)
  return band(byte(head, 1), CHILD) ~= 0 and sub(head, -16) or nil
end

-- Whether a lease holds: `lease_error` in model/transitions.py. `worker_id` is '' if it is not given.
local function is_held(head, token, worker_id, now)
  if not head or state_of(head) ~= RUNNING or sub(head, 76, 91) ~= token or unpack_from('>I8', head, 68) <= now then
    return false
  end
  return worker_id == '' or worker_id == sub(head, 93, 92 + byte(head, 92))
end

local function us(number)
  return pack('>I8', number)
end

local function text(number)
  return string.format('%.0f', number)
end

-- Commands take only so many arguments from a Lua table at a time.
local function each_part(command, key, arguments, count)
  for first = 1, count, 3000 do
    call(command, key, unpack(arguments, first, math.min(first + 2999, count)))
  end
end

-- Settings of a queue or of the harbor (settings_codec.py), or nil.
local function rules_in(packed)
  return packed and cmsgpack.unpack(packed)
end
local PAUSED, MAX_RUNNING, ENQUEUE_RATE, EXECUTE_RATE, FAIL_QUEUE, RETENTION, PARTS = 1, 2, 3, 4, 5, 6, 7
local IS_PART = -1 -- in place of the number of parts: this slot has a part of the queue

-- The lines of a queue including these, and whether that is a change.
local function with_lines(lines, more)
  local is_changed = not lines
  lines = lines or ''
  for line in pairs(more) do
    if not string.find(lines, '\1' .. line, 1, true) then
      lines, is_changed = lines .. '\1' .. line, true
    end
  end
  return lines, is_changed
end

-- A body is MessagePack: an array of queue, type, payload, max_stalls, max_attempts, requires ...; trailing ones are left out.
-- Where a short text in it begins and ends.
local function text_at(body, at)
  local sign = byte(body, at)
  if sign == 0xd9 then
    return at + 2, at + 1 + byte(body, at + 1)
  end
  return at + 1, at + sign - 0xa0
end

-- Where the payload of a body begins, and what comes behind it.
local function payload_in(body)
  local _, queue_end = text_at(body, 2)
  local _, type_end = text_at(body, queue_end + 1)
  local at = type_end + 1
  local sign = byte(body, at)
  local size, form = 2 ^ (sign - 0xc4), ({ [0xc4] = '>I1', [0xc5] = '>I2', [0xc6] = '>I4' })[sign]
  return at, at + 1 + size + unpack_from(form, body, at + 1)
end

local function without_payload(body)
  local at, behind = payload_in(body)
  return sub(body, 1, at - 1) .. '\196\0' .. sub(body, behind)
end

-- The line and the queue of a body: behind the payload are two counts, then the lane, unless it is the default.
local NUMBER_SIZES = { [0xcc] = 2, [0xcd] = 3, [0xce] = 5, [0xcf] = 9 }
local function line_in(body)
  local queue_start, queue_end = text_at(body, 2)
  local lane, type_name = 'any', sub(body, text_at(body, queue_end + 1))
  if byte(body, 1) - 0x90 > 5 then
    local _, at = payload_in(body)
    for _ = 1, 2 do
      at = at + (NUMBER_SIZES[byte(body, at)] or 1)
    end
    lane = sub(body, text_at(body, at))
  end
  return lane .. '\0' .. type_name .. '\0', sub(body, queue_start, queue_end)
end

-- The names of a job's notes, in order; N<id> says how many there are.
local function note_names(data, id, sizes)
  local fields = {}
  for i = 1, sizes and unpack_from('>I4', sizes) or 0 do
    fields[i] = 'N' .. id .. pack('>I4', i)
  end
  return fields[1] and call('HMGET', data, unpack(fields)) or {}
end

-- Name and value of each.
local function notes_of(data, id, sizes)
  local notes = {}
  for _, name in ipairs(note_names(data, id, sizes)) do
    notes[#notes + 1] = name
    notes[#notes + 1] = call('HGET', data, 'M' .. id .. name)
  end
  return notes
end

-- {bonds, family, open children, notes}, each '' when there is none; notes as a list of names and values.
local function family_fields(data, id, with_notes)
  local found = call('HMGET', data, 'B' .. id, 'f' .. id, 'O' .. id, 'N' .. id)
  local notes = with_notes and found[4] and notes_of(data, id, found[4]) or ''
  return { found[1] or '', found[2] or '', found[3] or '', notes }
end

-- A stored job: {id, head, body, story, result, progress, scoped key}, each '' when there is none;
-- nothing without a record; of a family also the list of `family_fields`.
-- `lean` leaves payload and result out, `listed` the notes.
local function record_parts(data, id, lean, listed)
  local result = lean and 'h' or 'r' -- any field that costs little
  local parts = call('HMGET', data, 'h' .. id, 'b' .. id, 's' .. id, result .. id, 'p' .. id, 'K' .. id)
  if not (parts[1] and parts[2]) then
    return nil
  end
  if lean then
    parts[2], parts[4] = without_payload(parts[2]), false
  end
  local record = { id, parts[1], parts[2], parts[3] or '', parts[4] and 'r' .. parts[4] or '', parts[5] or '', parts[6] or '' }
  local _, has_fields = state_of(parts[1])
  if has_fields then
    record[8] = family_fields(data, id, not listed)
  end
  return record
end

local function forget_notes(data, id)
  local fields = { 'N' .. id }
  for i, name in ipairs(note_names(data, id, call('HGET', data, 'N' .. id))) do
    fields[2 * i], fields[2 * i + 1] = 'N' .. id .. pack('>I4', i), 'M' .. id .. name
  end
  call('HDEL', data, unpack(fields))
end

-- Every field of a job, including its aliases; of a lost one also what a family has.
local function forget(data, id, is_lost)
  local fields = {}
  for prefix in string.gmatch(is_lost and 'hbsrpKIAcovBfOP' or 'hbsrpKIAcov', '.') do
    fields[#fields + 1] = prefix .. id
  end
  local followers = call('HGET', data, 'A' .. id) or ''
  for from = 1, #followers, 16 do
    fields[#fields + 1] = 'h' .. sub(followers, from, from + 15)
  end
  each_part('HDEL', data, fields, #fields)
  if is_lost then
    forget_notes(data, id)
  end
end

local function wake(key)
  if call('LLEN', key) == 0 then
    call('LPUSH', key, '1')
  end
end
