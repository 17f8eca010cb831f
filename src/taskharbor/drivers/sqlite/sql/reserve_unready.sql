-- reserve_unready: take what was picked out of the line: everything up to the last job that the same conditions let through.
--   :queue :lane :now :worker :types as for the pick   :rank :eligible_at :seq of its last job
delete from th_ready
where queue = :queue and lane = :lane and (rank, eligible_at, seq) <= (:rank, :eligible_at, :seq)
  and (timed = 0 or eligible_at <= :now)
  and (avoid is null or (  -- a copy: not for whom its first line names, nor yet for the others it names;
    instr(avoid || char(10), :worker || char(10)) <> 1
    and (instr(avoid, char(10) || :worker || char(10)) = 0
         or cast(substr(avoid, instr(avoid, char(10)) + 1) as integer) <= :now)
    and exists (  -- and its original runs, and not there
      select 1 from th_body c join th_body o on o.id = c.copy_of join th_lease l on l.seq = o.seq
        join th_grant g on g.no = l.grant_no
      where c.seq = th_ready.seq and g.worker <> :worker)))
  and (:types is null or type in (select value from json_each(:types)))
