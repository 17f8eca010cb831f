-- reserve_used_up: a run of which every job was taken.
--   :queue :lane :rank :eligible_at :seq of its head
delete from th_ready
where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at and seq = :seq
