-- settle_leases_run: end leases of one grant that need no closer look and whose seqs follow one another. Whoever calls
-- compares the number of rows.
--   :grant_no   :first :last seqs
delete from th_lease
where seq between :first and :last and grant_no = :grant_no and flags = 0
