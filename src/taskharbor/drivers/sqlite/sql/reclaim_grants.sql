-- reclaim_grants: the grants of one queue that ran out, oldest first: so many, and those that ran out with the last of them.
--   :queue :now :limit
--   returns (no, expires_at, runs)
select no, expires_at, runs from th_grant
where queue = :queue and expires_at <= coalesce((
    select expires_at from th_grant where queue = :queue and expires_at <= :now
    order by expires_at limit 1 offset :limit - 1
  ), :now)
order by expires_at
