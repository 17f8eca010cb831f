-- settle_leases: end leases of one grant that need no closer look. Whoever calls compares the number of rows.
--   :grant_no   :seqs JSON array
delete from th_lease
where seq in (select value from json_each(:seqs)) and grant_no = :grant_no and flags = 0
