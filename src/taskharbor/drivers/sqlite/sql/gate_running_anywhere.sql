-- gate_running_anywhere: how many unexpired leases there are.
--   :now
--   returns one number
select coalesce(sum(held), 0) from th_grant where expires_at > :now
