-- What steps of every kind share: seqs, the version of the rules, counts.

-- name: step_begin
-- The next free seq, the version of the rules, whether there are aliases.
select next_seq, rules, exists (select 1 from th_alias) from th_meta

-- name: step_take_seqs
-- Seqs below :next are issued.
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
