-- reserve_key: the waiting job of a key runs now.
--   :queue :key :seq
update th_key set place = 1 where queue = :queue and key = :key and place = 0 and seq = :seq
