-- schedules: every schedule, by name.
select schedule::text, paused, last_tick_at, created_at, updated_at, fired_at, declared_at
from {schema}.schedule order by name collate "C"
