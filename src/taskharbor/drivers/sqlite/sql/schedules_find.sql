-- schedules_find: one schedule.
--   :name
--   returns JSON
select entry from th_schedule where name = :name
