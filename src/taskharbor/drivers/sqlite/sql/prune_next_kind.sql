-- prune_next_kind: the next queue and state that has ends.
--   :queue :state behind which to look
--   returns (queue, state), or no row
select queue, state from th_outcome
where (queue, state, finished_at) > (:queue, :state, 9223372036854775807)
order by queue, state, finished_at limit 1
