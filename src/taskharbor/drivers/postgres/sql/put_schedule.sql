-- put_schedule: store a schedule under its name.
insert into {schema}.schedule values ($1, $2::text::json, $3, $4, $5, $6, $7, $8)
on conflict (name) do update set
    schedule = excluded.schedule, paused = excluded.paused, last_tick_at = excluded.last_tick_at,
    updated_at = excluded.updated_at, declared_at = excluded.declared_at
