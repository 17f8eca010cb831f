-- drop_outcomes: forget the ends of some jobs.
--   :seqs JSON array
delete from th_outcome where seq in (select value from json_each(:seqs))
