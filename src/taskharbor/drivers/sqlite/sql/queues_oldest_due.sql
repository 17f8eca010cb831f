-- queues_oldest_due: since when the first due job of a queue that was not lined up yet could run.
--   :queue :now
--   returns one instant, or null
select min(run_at) from th_later where queue = :queue and run_at <= :now
