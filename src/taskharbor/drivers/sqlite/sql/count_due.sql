-- count_due: how many scheduled jobs of one queue read ready because their time has come. Copies (flag 8) do not count.
--   :queue :now
--   returns one number
select count(*) from th_later where queue = :queue and run_at <= :now and flags & 8 = 0
