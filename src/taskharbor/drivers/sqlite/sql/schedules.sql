-- schedules: every schedule.
--   returns JSON, by name
select entry from th_schedule order by name
