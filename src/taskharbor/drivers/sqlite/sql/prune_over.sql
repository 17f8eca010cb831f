-- prune_over: the oldest ends of a queue and state that may go.
--   :queue :state :until :limit
--   returns (seq, last) of runs
select seq, last from th_outcome
where queue = :queue and state = :state and finished_at <= :until
order by finished_at, seq limit :limit
