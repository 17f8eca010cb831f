-- put_ended: note some ends, for pruning.
--   :queue :state :ended_at   :seqs JSON array
insert into th_ended (queue, state, ended_at, seqs) values (:queue, :state, :ended_at, :seqs)
