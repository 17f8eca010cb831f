-- step_timed: remember by which clock jobs with a run_at were lined up.
--   :now
update th_meta set timed_until = max(timed_until, :now)
