-- key_places: the live jobs of one key.
--   :queue :key
--   returns (place, seq)
select place, seq from th_key where queue = :queue and key = :key
