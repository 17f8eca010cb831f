-- extend_look: what is needed to judge and lengthen leases. One row for all.
--   :seqs JSON array
--   returns JSON array of [seq, id, grant_no, flags, bumps, fence, version of the past]
select json_group_array(json_array(l.seq, l.grant_no, l.flags, l.bumps, l.fence, p.version))
from json_each(:seqs) j cross join th_lease l on l.seq = j.value left join th_past p on p.seq = l.seq
