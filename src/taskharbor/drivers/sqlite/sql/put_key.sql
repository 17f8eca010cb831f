-- put_key: enter one job as the one of its key in a place.
--   :queue :key :place :seq
insert into th_key (queue, key, place, seq) values (:queue, :key, :place, :seq)
