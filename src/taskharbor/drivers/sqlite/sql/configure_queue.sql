-- configure_queue: store the settings of a queue.
--   :name   :settings JSON
insert into th_queue (name, settings) values (:name, :settings)
on conflict (name) do update set settings = excluded.settings
