-- prune_copies: which of some jobs are copies, and so not counted.
--   :seqs JSON array
--   returns seq
select b.seq from json_each(:seqs) j cross join th_body b on b.seq = j.value where b.copy_of is not null
