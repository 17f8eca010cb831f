-- orphans_ready: the rows of one line that name a job without a body.
--   :queue :lane
--   returns (rank, eligible_at, seq, last, timed, flags, type, avoid)
select rank, eligible_at, seq, last, timed, flags, type, avoid
from th_ready r
where queue = :queue and lane = :lane
  and (select count(*) from th_body b where b.seq between r.seq and r.last) <= r.last - r.seq
