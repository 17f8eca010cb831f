-- reclaim_grants_anywhere: the grants that ran out, oldest first: so many, and those that ran out with the last of them.
--   :now :limit
--   returns (no, expires_at, runs)
select no, expires_at, runs from th_grant
where expires_at <= coalesce((
    select expires_at from th_grant where expires_at <= :now order by expires_at limit 1 offset :limit - 1
  ), :now)
order by expires_at
