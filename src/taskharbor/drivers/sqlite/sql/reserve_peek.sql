-- reserve_peek: the head of the line of one queue and lane. Changes nothing.
--   :queue :lane
--   returns (seq, last, type, rank, eligible_at), or nothing when the line is empty or its head needs a closer look
select seq, last, type, rank, eligible_at
from (
  select seq, last, type, rank, eligible_at, timed, flags, avoid
  from th_ready where queue = :queue and lane = :lane
  order by rank, eligible_at, seq limit 1
)
where timed = 0 and flags = 0 and avoid is null
