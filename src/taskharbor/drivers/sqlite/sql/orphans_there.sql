-- orphans_there: the jobs of a run that have their body.
--   :first :last
--   returns seq, ascending
select seq from th_body where seq between :first and :last order by seq
