-- What time brings: leases that expire, jobs that are due, retention that is over (prune.py).

-- name: reclaim_claims
-- Expired claims of :queues (JSON), oldest first: :limit of them, and those that expired with the last one.
select no, expires_at, seqs from th_claim
where queue in (select value from json_each(:queues)) and expires_at <= coalesce((
    select expires_at from th_claim where queue in (select value from json_each(:queues)) and expires_at <= :now
    order by expires_at limit 1 offset :limit - 1
  ), :now)
order by expires_at

-- name: reclaim_queues
-- The queues in which jobs run.
with recursive name (queue) as (
  select min(queue) from th_claim
  union all
  select (select min(queue) from th_claim where queue > name.queue) from name where name.queue is not null
)
select queue from name where queue is not null

-- name: reclaim_jobs
-- The jobs that still run under a claim: (seq, id, flags, queue). A lost job has no id.
select s.seq, j.id, s.flags, c.queue from json_each(:seqs) x
cross join th_job_state s on s.seq = x.value and s.claim = :no and s.state = 3
cross join th_claim c on c.no = :no
left join th_job j on j.seq = s.seq

-- name: promote_queues
-- The queues in which jobs wait.
with recursive name (queue) as (
  select min(queue) from th_waiting
  union all
  select (select min(queue) from th_waiting where queue > name.queue) from name where name.queue is not null
)
select queue from name where queue is not null

-- name: promote_last
-- The last of the first :limit due jobs of a queue.
select at, seq from (
  select at, seq from th_waiting where queue = :queue and lane = '' and type = '' and rank = 0 and at <= :now
  order by at, seq limit :limit
) order by at desc, seq desc limit 1

-- name: promote_count
-- How many of them are listed, per block of seqs.
select seq >> 10, sum(flags & 8 = 0) from th_waiting
where queue = :queue and lane = '' and type = '' and rank = 0 and (at, seq) <= (:at, :seq)
group by 1

-- name: promote_ready
-- Line them up. One that has lost its body goes to a lane all the same: a claim there drops it.
insert into th_waiting (queue, lane, type, rank, at, seq, flags)
select w.queue, ifnull(j.lane, 'any'), ifnull(j.type, 'lost'), ifnull(-j.priority, 0), w.at, w.seq, w.flags
from th_waiting w left join th_job j on j.seq = w.seq
where w.queue = :queue and w.lane = '' and w.type = '' and w.rank = 0 and (w.at, w.seq) <= (:at, :seq)

-- name: promote_leave
-- They no longer wait for their time.
delete from th_waiting where queue = :queue and lane = '' and type = '' and rank = 0 and (at, seq) <= (:at, :seq)

-- name: prune_next_kind
-- The next queue and state with finished jobs.
select queue, state from th_finished
where (queue, state, at) > (:queue, :state, 9223372036854775807)
order by queue, state, at limit 1

-- name: prune_batches
-- The oldest batches whose retention is over.
select no, at, seqs from th_finished
where queue = :queue and state = :state and at <= :until
order by at, no limit :limit

-- name: prune_over
-- Which of :ends, a JSON array of [seq, at], are still as they ended: (seq, is a copy, flags, at).
select s.seq, j.copy_of is not null, s.flags, s.since
from json_each(:ends) x
cross join th_job_state s on s.seq = x.value ->> 0 and s.state = :state and s.since = x.value ->> 1
left join th_job j on j.seq = s.seq

-- name: prune_batches_done
-- Forget batches.
delete from th_finished where no in (select value from json_each(:nos))

-- name: prune_batch_rest
-- What is left of a batch.
update th_finished set seqs = :seqs where no = :no

-- name: prune_idempotency
-- Forget up to :limit expired idempotency keys.
delete from th_idempotency where (queue, key) in (
  select queue, key from th_idempotency where expires_at <= :now order by expires_at limit :limit
)

-- name: prune_rates
-- The rates of workers that have not been used for a whole window.
select name from th_rate_total t
where name like 'worker/%'
  and coalesce((select max(at) from th_rate_usage u where u.name = t.name), 0) + per <= :now
