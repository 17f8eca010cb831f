-- prune_listed: which jobs of an end are still over since then, and whether they are listed or copies.
--   :state :ended_at   :seqs JSON array
--   returns (seq, 1 for a listed job)
select o.seq, b.copy_of is null
from json_each(:seqs) j cross join th_outcome o on o.seq = j.value cross join th_body b on b.seq = o.seq
where o.state = :state and o.finished_at = :ended_at
order by o.seq
