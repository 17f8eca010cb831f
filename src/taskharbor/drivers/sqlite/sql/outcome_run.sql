-- outcome_run: the row of ends that a job stands in.
--   :seq
--   returns (seq, last)
select seq, last from th_outcome where seq <= :seq order by seq desc limit 1
