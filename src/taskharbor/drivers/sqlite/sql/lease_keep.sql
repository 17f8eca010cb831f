-- lease_keep: keep what is left of rows of leases that were ended in part.
--   :runs JSON array of [first seq, last seq, grant no]
insert into th_lease (seq, last, grant_no, flags, bumps)
select value ->> 0, value ->> 1, value ->> 2, 0, 0 from json_each(:runs)
