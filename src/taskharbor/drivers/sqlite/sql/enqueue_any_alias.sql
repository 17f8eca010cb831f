-- enqueue_any_alias: whether any id stands for another job: only then do new ids have to be compared with them.
--   returns one row, or none
select 1 from th_alias limit 1
