-- put_body: store the body of one job.
--   :seq :id :queue :type :requires :priority :created_at :run_at :traits :copy_of :payload
insert into th_body (seq, id, queue, type, requires, priority, created_at, run_at, traits, copy_of, payload)
values (:seq, :id, :queue, :type, :requires, :priority, :created_at, :run_at, :traits, :copy_of, :payload)
