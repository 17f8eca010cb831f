-- step_tally: count jobs of one block of 1024 seqs in or out.
--   :queue :block, and one difference per state
insert into th_tally (queue, block, scheduled, ready, blocked, running, completed, failed, cancelled)
values (:queue, :block, :scheduled, :ready, :blocked, :running, :completed, :failed, :cancelled)
on conflict (queue, block) do update set
  scheduled = scheduled + excluded.scheduled,
  ready = ready + excluded.ready,
  blocked = blocked + excluded.blocked,
  running = running + excluded.running,
  completed = completed + excluded.completed,
  failed = failed + excluded.failed,
  cancelled = cancelled + excluded.cancelled
