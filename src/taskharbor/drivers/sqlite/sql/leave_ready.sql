-- leave_ready: take one job that stands for itself out of the line.
--   :queue :lane :rank :eligible_at :seq
delete from th_ready
where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at
  and seq = :seq and last = :seq
