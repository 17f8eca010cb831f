-- prune_rest: keep the part of an end that was not dealt with yet.
--   :no   :seqs JSON array
update th_ended set seqs = :seqs where no = :no
