-- reserve_lease: lease jobs that need no closer look.
--   :grant_no   :seqs JSON array
insert into th_lease (seq, grant_no, flags, bumps)
select value, :grant_no, 0, 0 from json_each(:seqs)
