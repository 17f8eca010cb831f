-- extend_move: point rows of leases to their new grant.
--   :no   :seqs JSON array of their first seqs
update th_lease set grant_no = :no where seq in (select value from json_each(:seqs))
