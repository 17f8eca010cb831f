-- lease_forget: end whole rows of leases.
--   :seqs JSON array of their first seqs
delete from th_lease where seq in (select value from json_each(:seqs))
