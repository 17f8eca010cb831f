-- drop_body_run: forget the bodies of jobs whose seqs follow one another.
--   :first :last seqs
delete from th_body where seq between :first and :last
