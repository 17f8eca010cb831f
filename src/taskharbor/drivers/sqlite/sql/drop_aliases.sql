-- drop_aliases: forget the ids that stand for some jobs.
--   :seqs JSON array
delete from th_alias where seq in (select value from json_each(:seqs))
