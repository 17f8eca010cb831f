-- reclaim_leases: which of its leases a grant still has.
--   :no   :runs JSON array of [first seq, last seq]
--   returns (seq, last) of runs
select l.seq, l.last
from json_each(:runs) j cross join th_lease l on l.seq between j.value ->> 0 and j.value ->> 1
where l.grant_no = :no
