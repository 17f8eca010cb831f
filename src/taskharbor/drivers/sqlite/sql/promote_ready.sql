-- promote_ready: line up due jobs.
--   :queue   :run_at :seq the last one that may move
insert into th_ready (queue, lane, rank, eligible_at, seq, last, timed, flags, type, avoid)
select queue, lane, rank, run_at, seq, seq, 1, flags, type, avoid
from th_later where queue = :queue and (run_at, seq) <= (:run_at, :seq)
