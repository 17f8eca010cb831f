-- gate_running: how many unexpired leases a queue has.
--   :queue :now
--   returns one number
select coalesce(sum(held), 0) from th_grant where queue = :queue and expires_at > :now
