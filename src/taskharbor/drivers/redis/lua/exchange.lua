-- Settles attempts that concern no other job, then claims jobs: one step.
-- Part 1 of 5 of one script: reads. Then exchange_acks, exchange_settle (which writes), exchange_room, exchange_claim.
-- They use from here: known (the values of fields), before and last (the places around the heads in it), owed_place, groups, others,
-- first_other, rules, harbor, at (the first argument that is not read yet), reply and its size.
--
-- KEYS  data, idempotency ends, relatives, look from; then per queue: list, ready, later, leases, done, wake; then, when asked for, the
--       execute rates of each queue, of the harbor and of the worker; then the leases of further queues, which
--       only the harbor's max_running needs
-- ARGV  epoch, now, number of queues, their names; number of groups of acks and of other settlements, no id twice, '1' if the
--       caller settles more than these; per group:
--       queue, token, worker ('' if not given), number of results, the ids ('h' before each), the results ('' |
--       'r' result: of each, or none at all); per other settlement what settlements.py sends: queue, token, worker, 'h' id, state
--       that the job will have, attempts ('+' how many more | number), '' | 'k' its run_at is kept | 'a' run_at | 'd' delay, end of
--       the attempt's entry in the history, the rest of the story ('' keeps it), and behind the instant of this step more of it;
--       then nothing more, or a claim: number of queues (the first ones),
--       limit, lease in us, worker, token, whether the rates are there ('1'), rate count ('' for none), rate per,
--       whether expired leases were dealt with ('1'), and what families owe, too ('2'), number of further leases ('' when they are not there), how many
--       parts of the queue in other slots the caller knows ('' for none), '1' if the claim is for some of many queues, number of
--       lanes, lanes, types
-- Returns {now, 'epoch'} when nothing was done; else {now | {now, per job that is over with its last child {id, head, body,
--       bonds or '', family}, the queues with jobs that may run now whose workers wait in another slot}, per settlement: 8 times its version and 0 ready, 1 scheduled, 3 completed
--       or 4 failed | 'N' not running | 'M' another token
--       | 'E' expired | 'S' a unit of work must decide, then why nothing was claimed: 'later' (one was left over),
--       'expired', 'owed' (consequences of families come first), 'rates', 'leases' (call again with their keys), 'parts' (this queue
--       of a cluster has jobs in other slots that the caller does not know); or 'jobs', how many, the ids of entries that were dropped
--       because they have no record, and per job: id, head, body; then per job with more to it: its number, story,
--       scoped key, and '' or what `family_fields` returns. The head of a job that never ran and has no flags is the one before this step.
-- With a settlement left over or an expired lease nothing is claimed: those come first.
-- Repeats for speed: `settle_one` and `end` in drivers/lifecycle.py for jobs alone, `claimed` in
-- model/transitions.py, `may_take` in model/speculation.py.

local data, now = KEYS[1], clock(ARGV[2])
local queue_count = tonumber(ARGV[3])
local at = 4 + queue_count
local group_count, other_count, has_more = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2] == '1'
at = at + 3
local reply, size = { text(now) }, 1
local now8 = us(now)
local LIST, READY, LATER, LEASES, DONE, WAKE = 1, 2, 3, 4, 5, 6
local function key_of(queue, part)
  return KEYS[4 + (queue - 1) * 6 + part]
end

local fields = { 'e', 'R*' }
for queue = 1, queue_count do
  fields[1 + 2 * queue] = 'R' .. ARGV[3 + queue]
  fields[2 + 2 * queue] = 'Q' .. ARGV[3 + queue]
end
local before = 3 + 2 * queue_count
fields[before] = 't'
local owed_place = before
local groups, last = {}, before
for g = 1, group_count do
  local results, heads = tonumber(ARGV[at + 3]), ARGV[at + 4]
  local group = { queue = tonumber(ARGV[at]), token = ARGV[at + 1], worker_id = ARGV[at + 2], first = last,
    count = #heads / 17, results = results > 0 and at + 4 }
  for i = 1, group.count do
    fields[last + i] = sub(heads, 17 * i - 16, 17 * i)
  end
  last = last + group.count
  groups[g] = group
  at = at + 5 + results
end
local others, first_other = at, last
for i = 1, other_count do
  fields[last + i] = ARGV[at + 3]
  at = at + 10
end
last = last + other_count
local known
if last <= 3000 then
  known = call('HMGET', data, unpack(fields))
else
  known = {}
  for from = 1, last, 3000 do
    local part = call('HMGET', data, unpack(fields, from, math.min(from + 2999, last)))
    for i = 1, #part do
      known[from + i - 1] = part[i]
    end
  end
end
if known[1] ~= ARGV[1] then
  return { text(now), 'epoch' }
end
local harbor, rules = rules_in(known[2]) or false, {}
for queue = 1, queue_count do
  rules[queue] = rules_in(known[1 + 2 * queue]) or false
end
