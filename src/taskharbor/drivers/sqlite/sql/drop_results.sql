-- drop_results: forget what some jobs gave back.
--   :seqs JSON array
delete from th_result where seq in (select value from json_each(:seqs))
