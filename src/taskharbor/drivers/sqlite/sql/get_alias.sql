-- get_alias: the jobs that some ids stand for since they were absorbed or merged.
--   :ids JSON array
--   returns (id, seq of the job it stands for)
select id, seq from th_alias where id in (select value from json_each(:ids))
