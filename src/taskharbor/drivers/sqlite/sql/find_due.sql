-- find_due: whether one of these queues has a job that is due and was not lined up yet.
--   :queues JSON array   :now
--   returns one row, or none
select 1 from th_later
where run_at <= :now and queue in (select value from json_each(:queues))
limit 1
