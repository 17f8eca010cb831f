-- types_find: how long jobs of one type usually take.
--   :name
--   returns JSON
select info from th_type where name = :name
