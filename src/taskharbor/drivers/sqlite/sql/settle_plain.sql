-- settle_plain: which leases of one grant need no closer look.
--   :grant_no   :seqs JSON array
--   returns seq
select seq from th_lease
where seq in (select value from json_each(:seqs)) and grant_no = :grant_no and flags = 0
