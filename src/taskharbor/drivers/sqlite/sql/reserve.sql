-- Jobs out: what is due, the next jobs of a line, their claim.

-- name: reserve_look
-- Whether a lease of :queue has expired, a job of it is due, a copy waits in it, whether a consequence is owed or a
-- deadline has passed anywhere.
-- `type = '' and rank = 0` keep the probe on the key: without them every scheduled job is looked at.
select exists (select 1 from th_claim where queue = :queue and expires_at <= :now),
       exists (select 1 from th_waiting where queue = :queue and lane = '' and type = '' and rank = 0 and at <= :now),
       exists (select 1 from th_waiting indexed by th_waiting_copy where queue = :queue and flags & 8),
       exists (select 1 from th_owed where no > 0) or exists (select 1 from th_bond where deadline <= :now)

-- name: reserve_queues
-- The queues with waiting jobs, then those with expired leases. Walks from one queue that has any to the next. Each list ends
-- with null, unless more than :most queues have some.
with recursive waiting (queue) as (
  select min(queue) from th_waiting
  union all
  select (select min(queue) from th_waiting where queue > waiting.queue) from waiting where waiting.queue is not null
  limit :most + 1
), leased (queue) as (
  select min(queue) from th_claim
  union all
  select (select min(queue) from th_claim where queue > leased.queue) from leased where leased.queue is not null
  limit :most + 1
)
select queue from waiting
union all
select queue from leased
where queue is null or exists (select 1 from th_claim c where c.queue = leased.queue and c.expires_at <= :now)

-- name: reserve_queues_of
-- The same for these :queues, a JSON array: a look-up for each of them.
select value from json_each(:queues)
where exists (select 1 from th_waiting where queue = value)
   or exists (select 1 from th_claim where queue = value and expires_at <= :now)

-- name: reserve_types
-- The types of the jobs that wait in a lane: one look-up each, however many jobs there are.
with recursive name (type) as (
  select min(type) from th_waiting where queue = :queue and lane = :lane
  union all
  select (select min(type) from th_waiting where queue = :queue and lane = :lane and type > name.type)
  from name where name.type is not null
)
select type from name where type is not null

-- name: reserve_types_of
-- Those of :types, a JSON array, of which jobs wait in a lane.
select value from json_each(:types)
where exists (select 1 from th_waiting where queue = :queue and lane = :lane and type = value)

-- name: reserve_may_run
-- Whether this worker may have a job that waits. :copies is a JSON array of seqs. The last condition repeats
-- `may_run` in drivers/families.py: in time, and the parent is not being stopped.
(flags & 456 = 0
 or (iif(flags & 64, at <= :now, true) and iif(flags & 8, seq in (select value from json_each(:copies)), true)
     and iif(flags & 384, not exists (
       select 1 from th_bond b left join th_family p on p.seq = b.parent
       where b.seq = th_waiting.seq
         and (b.deadline <= :now or (p.stopping is not null and not (p.spares and b.is_spared)))), true)))

-- name: reserve_line
-- The jobs of one type in a lane that this worker may have. {may_run} is reserve_may_run.
select seq, type, flags, rank, at from th_waiting
where queue = :queue and lane = :lane and type = {type}
  and {may_run}

-- name: reserve_pick
-- The next jobs of a lane, as columns of joined texts; whether any of them has lost its body. {lines} is
-- reserve_line once per type, merged in the order of claims up to :limit.
select group_concat(seq), group_concat(id), group_concat(length(payload)), cast(group_concat(payload, '') as blob),
       group_concat(flags), group_concat(rank), group_concat(at), group_concat(type),
       group_concat(ifnull(options, ''), char(10)), max(id is null)
from (
  select w.seq, j.id, w.type, w.flags, w.rank, w.at, j.options, j.payload
  from ({lines}) w left join th_job j on j.seq = w.seq
)

-- name: reserve_leave
-- Take out of line what reserve_pick found, up to its last job. :types is a JSON array.
delete from th_waiting
where queue = :queue and lane = :lane and type in (select value from json_each(:types))
  and (rank, at, seq) <= (:rank, :at, :seq)
  and {may_run}

-- name: reserve_rest
-- Whether a job of :queue is still ready. Scheduled ones have no lane.
select exists (select 1 from th_waiting where queue = :queue and lane > '')

-- name: reserve_claim
-- The claim that the picked jobs share.
insert into th_claim (queue, token, worker, started_at, expires_at, updated_at, extensions, held, seqs)
values (:queue, :token, :worker, :now, :expires_at, :now, 0, :held, :seqs)

-- name: reserve_state
-- The jobs :seqs run under claim :no. `since` is filled so that an ack does not lengthen the row.
-- Repeats `claimed` in model/transitions.py.
insert into th_job_state (seq, state, claim, flags, version, fence, since)
select value, 3, :no, :flags, 2, null, :now from json_each(:seqs) where true
on conflict (seq) do update set
  state = 3, claim = excluded.claim, flags = excluded.flags, version = version + 1,
  fence = max(fence + 1, excluded.since), since = excluded.since, progress = null

-- name: reserve_more
-- What the pick does not say of jobs with a key, an idempotency key or a run_at.
select seq, key, idempotency_key, created_at from th_job where seq in (select value from json_each(:seqs))

-- name: reserve_past
-- What the pick does not say of jobs that ran before and have nothing else to them. Their states are as claimed.
select s.seq, j.created_at, s.version, s.fence,
       h.attempts, h.stalls, h.starts, h.run_at, h.last_error, h.failed_at, h.failure_kind, h.history
from json_each(:seqs) x
cross join th_job_state s on s.seq = x.value
cross join th_job j on j.seq = s.seq
left join th_job_history h on h.seq = s.seq

-- name: reserve_bound
-- The same of jobs with bonds: how often they have changed, and what `family_get` reads of them.
select j.seq, j.version, j.fence{ties}
from json_each(:seqs) x cross join th_job_state j on j.seq = x.value{tables}

-- name: reserve_copies
-- The speculative copies that wait in a queue.
select seq from th_waiting indexed by th_waiting_copy where queue = :queue and flags & 8

-- name: reserve_orphans
-- Entries of a lane whose job has no body.
select type, rank, at, seq, flags from th_waiting w
where queue = :queue and lane = :lane and not exists (select 1 from th_job j where j.seq = w.seq)
