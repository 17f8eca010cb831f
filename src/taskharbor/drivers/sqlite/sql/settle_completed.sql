-- settle_completed: keep first-try successes.
--   :queue :finished_at :version :started_at :token   :runs JSON array of [first seq, last seq]
insert into th_outcome (seq, last, queue, state, finished_at, version, started_at, token)
select value ->> 0, value ->> 1, :queue, 'completed', :finished_at, :version, :started_at, :token
from json_each(:runs)
