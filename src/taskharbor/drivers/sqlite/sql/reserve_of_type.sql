-- reserve_of_type: the first rows of one type in one queue and lane, in the order of claims, under the conditions of
-- reserve_pick.
--   :queue :lane :limit :now   :worker who asks   :type
--   returns (rank, eligible_at, seq, last)
select r.rank, r.eligible_at, r.seq, r.last from th_ready r indexed by th_ready_types
where r.queue = :queue and r.lane = :lane and r.type = :type
  and (r.timed = 0 or r.eligible_at <= :now)
  and (r.avoid is null or (  -- a copy: not for whom its first line names, nor yet for the others it names;
      instr(r.avoid || char(10), :worker || char(10)) <> 1
    and (instr(r.avoid, char(10) || :worker || char(10)) = 0
           or cast(substr(r.avoid, instr(r.avoid, char(10)) + 1) as integer) <= :now)
    and exists (  -- and its original runs, and not there
        select 1 from th_body c join th_body o on o.id = c.copy_of join th_lease l on l.seq = o.seq
          join th_grant g on g.no = l.grant_no
        where c.seq = r.seq and g.worker <> :worker)))
order by r.rank, r.eligible_at, r.seq
limit :limit
