-- advance_schedule: ticks up to here were dealt with; never goes back.   $1 name  $2 tick  $3 now  $4 fired
update {schema}.schedule set
    updated_at = case when $2::timestamptz > last_tick_at then coalesce($3::timestamptz, clock_timestamp()) else updated_at end,
    fired_at = case when $2::timestamptz > last_tick_at and $4::boolean then $2::timestamptz else fired_at end,
    last_tick_at = greatest(last_tick_at, $2::timestamptz)
where name = $1::text returning name
