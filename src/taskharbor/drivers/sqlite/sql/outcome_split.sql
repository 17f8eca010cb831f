-- outcome_split: let the ends of a run from one seq on be a run of their own. The run still has to be shortened.
--   :run its first seq   :at the first seq of the new one
insert into th_outcome (seq, last, queue, state, finished_at, version, started_at, token)
select :at, last, queue, state, finished_at, version, started_at, token from th_outcome where seq = :run
