-- put_outcome: keep the end of a job whose past says the rest.
--   :seq :state :finished_at
insert into th_outcome (seq, state, finished_at) values (:seq, :state, :finished_at)
