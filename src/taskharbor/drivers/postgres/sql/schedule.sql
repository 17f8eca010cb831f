-- schedule: the deciding instant, and a schedule or nulls.   $1 name   $2 now
select at.now, s.schedule::text, s.paused, s.last_tick_at, s.created_at, s.updated_at, s.fired_at, s.declared_at
from (select coalesce($2::timestamptz, clock_timestamp()) as now) at
left join {schema}.schedule s on s.name = $1::text
