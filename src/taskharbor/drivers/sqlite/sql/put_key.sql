-- put_key: enter one job as the one of its key in a place. Only a job that was lost may still stand there.
--   :queue :key :place :seq
insert into th_key (queue, key, place, seq) values (:queue, :key, :place, :seq)
on conflict (queue, key, place) do update set seq = excluded.seq
where not exists (select 1 from th_body b where b.seq = th_key.seq)
