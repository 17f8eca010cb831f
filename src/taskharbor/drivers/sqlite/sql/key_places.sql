-- key_places: the live jobs of one key. One whose body was lost keeps nobody out.
--   :queue :key
--   returns (place, seq)
select place, seq from th_key k
where queue = :queue and key = :key and exists (select 1 from th_body b where b.seq = k.seq)
