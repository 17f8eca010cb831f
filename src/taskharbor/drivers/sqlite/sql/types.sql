-- types: how long jobs of each type usually take.
--   returns JSON, by name
select info from th_type order by name
