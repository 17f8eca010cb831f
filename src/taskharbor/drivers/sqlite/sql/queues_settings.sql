-- queues_settings: the stored settings of every queue that has some.
--   returns (name, JSON)
select name, settings from th_queue order by name
