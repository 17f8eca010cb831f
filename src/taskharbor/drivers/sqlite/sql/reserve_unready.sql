-- reserve_unready: take what was leased out of the line.
--   parameters as for reserve_lease
delete from th_ready
where queue = :queue and lane = :lane and (rank, eligible_at, seq) <= (:rank, :eligible_at, :seq)
  and (timed = 0 or eligible_at <= :now)
  and (avoid is null or avoid <> :worker)
  and (:types is null or type in (select value from json_each(:types)))
