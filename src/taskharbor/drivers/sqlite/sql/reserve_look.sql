-- reserve_look: whether anything of a queue has to be seen to before a claim, and the version of the rules.
--   :queue :now
--   returns one row (1 if a lease ran out, 1 if a job is due, rules)
select exists (select 1 from th_grant where queue = :queue and expires_at <= :now),
       exists (select 1 from th_later where queue = :queue and run_at <= :now),
       rules
from th_meta
