-- outcome_shorten: end a run of ends earlier.
--   :run its first seq   :last its last seq from now on
update th_outcome set last = :last where seq = :run
