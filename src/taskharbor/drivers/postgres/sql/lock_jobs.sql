-- lock_jobs: lock jobs and what is tied to them, and read it; see the function locked_jobs.
--   $1 ids   $2 tokens of their leases, or null   $3 now or null
select {columns}, l.o_at, l.o_alias_ids, l.o_alias_targets, l.o_rule_queues, l.o_rule_settings
from {schema}.locked_jobs($1::text[], $2::text[], $3::timestamptz) l
cross join lateral (select (l.o_place).*) p
cross join lateral (select (l.o_job).*) j
