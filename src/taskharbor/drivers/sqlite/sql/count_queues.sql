-- count_queues: every queue with a job. Jumps from name to name, so its cost is that of the names.
--   returns queue, ascending
with recursive name (queue) as (
  select min(queue) from th_tally
  union all
  select (select min(queue) from th_tally where queue > name.queue) from name where name.queue is not null
)
select queue from name where queue is not null
