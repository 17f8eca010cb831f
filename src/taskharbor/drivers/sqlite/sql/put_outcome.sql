-- put_outcome: keep the end of a job whose past says the rest.
--   :seq :queue :state :finished_at
insert into th_outcome (seq, last, queue, state, finished_at) values (:seq, :seq, :queue, :state, :finished_at)
