-- extend_move: point leases to their new grant.
--   :no   :seqs JSON array
update th_lease set grant_no = :no where seq in (select value from json_each(:seqs))
