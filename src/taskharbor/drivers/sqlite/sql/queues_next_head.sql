-- queues_next_head: the first job of the next lane and priority of a queue.
--   :queue   :lane :rank behind which to look
--   returns (lane, rank, eligible_at), or no row
select lane, rank, eligible_at from th_ready
where queue = :queue and (lane, rank, eligible_at) > (:lane, :rank, 9223372036854775807)
order by lane, rank, eligible_at limit 1
