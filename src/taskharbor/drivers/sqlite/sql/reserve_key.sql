-- reserve_key: the waiting job of a key runs now. Only a job that was lost may still stand there as running.
--   :queue :key :seq
update or replace th_key set place = 1 where queue = :queue and key = :key and place = 0 and seq = :seq
