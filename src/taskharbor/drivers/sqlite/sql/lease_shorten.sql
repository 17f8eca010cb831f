-- lease_shorten: end a run of leases earlier.
--   :run its first seq   :last its last seq from now on
update th_lease set last = :last where seq = :run
