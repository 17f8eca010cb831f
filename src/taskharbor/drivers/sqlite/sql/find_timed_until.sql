-- find_timed_until: the latest clock by which jobs with a run_at were lined up: before it, one of those may read scheduled.
--   returns one instant
select timed_until from th_meta
