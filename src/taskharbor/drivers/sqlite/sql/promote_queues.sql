-- promote_queues: the queues that have a job waiting for its time. Jumps from name to name.
--   returns queue, ascending
with recursive name (queue) as (
  select min(queue) from th_later
  union all
  select (select min(queue) from th_later where queue > name.queue) from name where name.queue is not null
)
select queue from name where queue is not null
