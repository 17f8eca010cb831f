-- prune_outcomes: forget whole rows of ends.
--   :seqs JSON array of their first seqs
delete from th_outcome where seq in (select value from json_each(:seqs))
