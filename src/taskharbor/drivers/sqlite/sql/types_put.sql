-- types_put: keep how long jobs of one type usually take.
--   :name   :info JSON
insert into th_type (name, info) values (:name, :info)
on conflict (name) do update set info = excluded.info
