-- Looking: records by id and by seq, page by page, and in numbers.

-- name: get
-- Whole records; {match} is j.id or j.seq, {payload} and {result} are columns, or nothing in their place. {ties} and
-- {tables} add what `family_get` reads.
select j.seq, j.id, j.queue, j.type, j.lane, j.priority, j.created_at, j.run_at, j.key, j.idempotency_key,
       j.options, j.copy_of, {payload},
       s.state, s.flags, s.version, s.fence, s.since, {result}, s.progress,
       c.no, c.token, c.worker, c.started_at, c.expires_at, c.updated_at, c.extensions,
       f.started_at, f.token,
       h.attempts, h.stalls, h.starts, h.run_at, h.started_at, h.settled_token,
       h.last_error, h.failed_at, h.failure_kind, h.history, h.update_rule{ties}
from json_each(:values) x
cross join th_job j on {match} = x.value
left join th_job_state s on s.seq = j.seq
left join th_claim c on c.no = s.claim
left join th_finished f on f.no = s.finished
left join th_job_history h on h.seq = j.seq
left join th_job_result r on r.seq = j.seq{tables}

-- name: get_seqs
-- The seqs of :ids.
select id, seq from th_job where id in (select value from json_each(:ids))

-- name: get_aliases
-- The jobs that :ids lead to.
select id, seq from th_alias where id in (select value from json_each(:ids))

-- name: find
-- The next jobs of a queue and of these states in a range of seqs, and whether the rest holds; null asks for nothing.
-- {order} is asc or desc. The states are those of `shown` in model/transitions.py.
select j.seq, (:type is null or j.type = :type)
  and (:key is null or j.key = :key)
  and (:worker is null or ifnull(c.worker = :worker, 0))
  and (:failure_kind is null or ifnull(h.failure_kind = :failure_kind, 0))
  and (:ended_after is null or ifnull(s.state > 3 and s.since > :ended_after, 0))
from th_job j
left join th_job_state s on s.seq = j.seq
left join th_claim c on c.no = s.claim
left join th_job_history h on h.seq = j.seq
where j.seq between :low and :high
  and j.copy_of is null
  and (:queue is null or j.queue = :queue)
  and (:states is null or case ifnull(s.state, 0)
         when 0 then iif(ifnull(iif(h.seq is null, j.run_at, h.run_at), 0) > :now, 'scheduled', 'ready')
         when 2 then 'blocked' when 3 then 'running' when 4 then 'completed' when 5 then 'failed'
         else 'cancelled'
       end in (select value from json_each(:states)))
order by j.seq {order}
limit :limit

-- name: find_children
-- The next children of a job in a range of seqs, and whether the rest holds; null asks for nothing. {order} as above.
select b.seq, (:type is null or j.type = :type)
  and (:queue is null or j.queue = :queue)
  and (:key is null or j.key = :key)
  and (:worker is null or ifnull(c.worker = :worker, 0))
  and (:failure_kind is null or ifnull(h.failure_kind = :failure_kind, 0))
  and (:ended_after is null or ifnull(s.state > 3 and s.since > :ended_after, 0))
  and (:states is null or case ifnull(s.state, 0)
         when 0 then iif(ifnull(iif(h.seq is null, j.run_at, h.run_at), 0) > :now, 'scheduled', 'ready')
         when 2 then 'blocked' when 3 then 'running' when 4 then 'completed' when 5 then 'failed'
         else 'cancelled'
       end in (select value from json_each(:states)))
from th_bond b
cross join th_job j on j.seq = b.seq
left join th_job_state s on s.seq = b.seq
left join th_claim c on c.no = s.claim
left join th_job_history h on h.seq = b.seq
where b.parent = (select seq from th_job where id = :parent) and b.seq between :low and :high
order by b.seq {order}
limit :limit

-- name: find_kept
-- As find_ended, for children that wait for their root.
select k.at, k.seq, (:type is null or j.type = :type)
  and (:key is null or j.key = :key)
  and (:failure_kind is null or ifnull(h.failure_kind = :failure_kind, 0))
  and (:parent is null or b.parent = (select seq from th_job where id = :parent))
from th_kept k
cross join th_job j on j.seq = k.seq
cross join th_bond b on b.seq = k.seq
left join th_job_history h on h.seq = k.seq
where k.queue = :queue and k.state = :state and k.at > :ended_after and k.at {upto} :at
  and (k.at {beyond} :at or k.seq {beyond} :seq)
order by k.at {order}, k.seq {order}
limit :limit

-- name: find_ended
-- The next jobs of a queue that ended in one state and are still as they ended, and whether the rest holds.
-- {upto} is <= or >=, {beyond} the same without =, {order} its direction. A job that ended twice at one instant may come twice.
select f.at, x.value, (:type is null or j.type = :type)
  and (:key is null or j.key = :key)
  and (:failure_kind is null or ifnull(h.failure_kind = :failure_kind, 0))
  and (:parent is null or exists (
    select 1 from th_bond b where b.seq = x.value and b.parent = (select seq from th_job where id = :parent)))
from th_finished f
cross join json_each(f.seqs) x
cross join th_job_state s on s.seq = x.value
cross join th_job j on j.seq = x.value
left join th_job_history h on h.seq = x.value
where f.queue = :queue and f.state = :state and f.at > :ended_after and f.at {upto} :at
  and (f.at {beyond} :at or x.value {beyond} :seq)
  and s.state = f.state and s.since = f.at and j.copy_of is null
order by f.at {order}, x.value {order}
limit :limit

-- name: find_blocks
-- The blocks of seqs that hold jobs of these states, of one queue or ({among} empty) of all; jobs that came one by one
-- are not counted yet. {within} is >= or <=, {order} its direction.
select block from th_count
where {among} block {within} :block and (
    (:scheduled and scheduled > 0) or (:ready and ready > 0) or (:blocked and blocked > 0)
    or (:running and running > 0) or (:completed and completed > 0) or (:failed and failed > 0)
    or (:cancelled and cancelled > 0))
union
select seq >> 10 from th_job
where {among} :ready and seq >= (select next_seq from th_meta) and seq >> 10 {within} :block
order by block {order}
limit :limit

-- name: find_due
-- Whether a job of :queues is due that was not promoted.
select 1 from th_waiting
where queue in (select value from json_each(:queues)) and lane = '' and type = '' and rank = 0 and at <= :now
limit 1

-- name: find_timed_until
-- The latest clock by which a job with a run_at became ready.
select timed_until from th_meta

-- name: count
-- The number of jobs of a queue per state, but for those that `count_arrived` counts.
select sum(scheduled), sum(ready), sum(blocked), sum(running), sum(completed), sum(failed), sum(cancelled)
from th_count where queue = :queue

-- name: count_arrived
-- How many jobs came one by one and are not counted yet (`enqueue_one`), by queue, and since when. They are ready.
select queue, count(*), min(created_at) from th_job where seq >= (select next_seq from th_meta) group by queue

-- name: count_due
-- How many scheduled jobs of a queue are due: they read ready.
select count(*) from th_waiting
where queue = :queue and lane = '' and type = '' and rank = 0 and at <= :now and flags & 8 = 0

-- name: count_queues
-- The queues that have jobs.
with recursive name (queue) as (
  select min(queue) from th_count
  union all
  select (select min(queue) from th_count where queue > name.queue) from name where name.queue is not null
)
select queue from name where queue is not null

-- name: queues_next_head
-- The next lane, type and rank of a queue with ready jobs, and since when the first of them could run.
select lane, type, rank, at from th_waiting
where queue = :queue and (lane, type, rank, at) > (:lane, :type, :rank, 9223372036854775807)
order by lane, type, rank, at limit 1

-- name: queues_oldest_due
-- The first due job of a queue that was not promoted.
select min(at) from th_waiting where queue = :queue and lane = '' and type = '' and rank = 0 and at <= :now
