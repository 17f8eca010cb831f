-- drop_body: forget the bodies of some jobs.
--   :seqs JSON array
delete from th_body where seq in (select value from json_each(:seqs))
