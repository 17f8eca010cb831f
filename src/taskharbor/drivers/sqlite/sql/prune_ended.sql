-- prune_ended: the oldest ends of a queue and state that may go.
--   :queue :state :until :limit
--   returns (no, ended_at, seqs)
select no, ended_at, seqs from th_ended
where queue = :queue and state = :state and ended_at <= :until
order by ended_at limit :limit
