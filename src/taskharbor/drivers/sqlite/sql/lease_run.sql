-- lease_run: the row of leases that a running job stands in.
--   :seq
--   returns (seq, last)
select seq, last from th_lease where seq <= :seq order by seq desc limit 1
