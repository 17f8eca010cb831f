-- reclaim_leases: which of its leases a grant still has.
--   :no   :seqs JSON array
--   returns seq
select l.seq from json_each(:seqs) j cross join th_lease l on l.seq = j.value
where l.grant_no = :no
