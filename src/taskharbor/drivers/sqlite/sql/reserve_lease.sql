-- reserve_lease: lease jobs that need no closer look.
--   :grant_no   :runs JSON array of [first seq, last seq]
insert into th_lease (seq, last, grant_no, flags, bumps)
select value ->> 0, value ->> 1, :grant_no, 0, 0 from json_each(:runs)
