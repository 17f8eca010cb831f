-- prune_next_kind: the next queue and state that has ends.
--   :queue :state behind which to look
--   returns (queue, state), or no row
select queue, state from th_ended
where (queue, state) > (:queue, :state)
order by queue, state limit 1
