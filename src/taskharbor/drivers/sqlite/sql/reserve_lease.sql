-- reserve_lease: lease what was picked: everything up to the last one of the pick that the same conditions let through.
--   :grant_no :queue :lane :now :worker :types as for the pick   :rank :eligible_at :seq of its last job
insert into th_lease (seq, grant_no, flags, bumps)
select seq, :grant_no, flags, 0 from th_ready
where queue = :queue and lane = :lane and (rank, eligible_at, seq) <= (:rank, :eligible_at, :seq)
  and (timed = 0 or eligible_at <= :now)
  and (avoid is null or avoid <> :worker)
  and (:types is null or type in (select value from json_each(:types)))
