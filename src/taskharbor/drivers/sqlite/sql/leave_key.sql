-- leave_key: take one job out of its key.
--   :queue :key :place :seq
delete from th_key where queue = :queue and key = :key and place = :place and seq = :seq
