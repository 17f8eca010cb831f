-- promote_unlater: take what was lined up out of those that wait for their time.
--   :queue   :run_at :seq the last one that moved
delete from th_later where queue = :queue and (run_at, seq) <= (:run_at, :seq)
