-- reserve_shorten: a run begins behind the jobs that were taken from its head.
--   :queue :lane :rank :eligible_at :seq of its head   :next its head from now on
update th_ready set seq = :next
where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at and seq = :seq
