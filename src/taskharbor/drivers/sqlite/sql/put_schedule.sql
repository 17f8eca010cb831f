-- put_schedule: store a schedule.
--   :name   :entry JSON
insert into th_schedule (name, entry) values (:name, :entry)
on conflict (name) do update set entry = excluded.entry
