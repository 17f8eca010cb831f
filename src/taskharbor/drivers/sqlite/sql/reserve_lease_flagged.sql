-- reserve_lease_flagged: lease a job whose end needs a closer look.
--   :grant_no :seq :flags
insert into th_lease (seq, last, grant_no, flags, bumps) values (:seq, :seq, :grant_no, :flags, 0)
