-- drop_past: forget the past of some jobs.
--   :seqs JSON array
delete from th_past where seq in (select value from json_each(:seqs))
