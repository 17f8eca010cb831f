-- copy_of: the copies of a job that are not over.
--   :id
--   returns seq
select b.seq from th_body b
where b.copy_of = :id and not exists (select 1 from th_outcome o where o.seq = b.seq)
