-- What steps of every kind share: seqs, the version of the rules, counts.

-- name: step_begin
-- Since which seq jobs came one by one (`enqueue_one`), the next free seq, the version of the rules; whether there are
-- aliases, idempotency keys and speculative copies.
select next_seq, max(next_seq, ifnull((select max(seq) from th_job), 0) + 1), rules,
       exists (select 1 from th_alias), exists (select 1 from th_idempotency),
       exists (select 1 from th_job indexed by th_job_copy_of where copy_of is not null)
from th_meta

-- name: step_arrived
-- How many jobs came one by one, by queue and block.
select queue, seq >> 10, count(*) from th_job where seq between :first and :last group by 1, 2

-- name: step_take_seqs
-- Seqs below :next are issued, and their jobs are in line.
update th_meta set next_seq = :next

-- name: step_timed
-- A job with a run_at became ready by this clock.
update th_meta set timed_until = max(timed_until, :now)

-- name: step_count
-- Change the counts of a block.
insert into th_count (queue, block, scheduled, ready, blocked, running, completed, failed, cancelled)
values (:queue, :block, :scheduled, :ready, :blocked, :running, :completed, :failed, :cancelled)
on conflict (queue, block) do update set
  scheduled = scheduled + excluded.scheduled,
  ready = ready + excluded.ready,
  blocked = blocked + excluded.blocked,
  running = running + excluded.running,
  completed = completed + excluded.completed,
  failed = failed + excluded.failed,
  cancelled = cancelled + excluded.cancelled

-- name: step_count_clear
-- Forget a block without jobs.
delete from th_count
where queue = :queue and block = :block
  and scheduled = 0 and ready = 0 and blocked = 0 and running = 0
  and completed = 0 and failed = 0 and cancelled = 0
