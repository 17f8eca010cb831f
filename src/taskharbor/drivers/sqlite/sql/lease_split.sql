-- lease_split: let the leases of a run from one seq on be a run of their own. The run still has to be shortened.
--   :run its first seq   :at the first seq of the new one
insert into th_lease (seq, last, grant_no, flags, bumps)
select :at, last, grant_no, flags, bumps from th_lease where seq = :run
