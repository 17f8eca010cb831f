-- delete_schedule: forget a schedule.
--   :name
delete from th_schedule where name = :name
