-- facts: what else a step needs, in one row: the deciding instant, aliases among ids, every rule.
--   $1 ids   $2 now or null
select coalesce($2::timestamptz, clock_timestamp()), a.ids, a.targets, r.queues, r.settings
from (select array_agg(id::text) as ids, array_agg(target::text) as targets
      from unnest($1::text[]) as i(given)
      cross join lateral (select * from {schema}.alias b where b.id = i.given::uuid offset 0) b) a,
     (select array_agg(queue) as queues, array_agg(settings::text) as settings from {schema}.rule) r
