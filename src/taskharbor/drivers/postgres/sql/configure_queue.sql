-- configure_queue: store the settings of a queue. A budget that is unset remembers nothing; a gate that
-- may have opened wakes whoever waits behind it.
with stored as (
    insert into {schema}.rule values ($1::text, $2::text::json, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
    on conflict (queue) do update set
        settings = excluded.settings, paused = excluded.paused, max_running = excluded.max_running,
        enqueue_count = excluded.enqueue_count, enqueue_us = excluded.enqueue_us,
        execute_count = excluded.execute_count, execute_us = excluded.execute_us, fail_queue = excluded.fail_queue,
        has_retention = excluded.has_retention, keep_completed_us = excluded.keep_completed_us,
        keep_failed_us = excluded.keep_failed_us, keep_cancelled_us = excluded.keep_cancelled_us
), forgotten as (
    delete from {schema}.spent s where s.name = $1::text
    and (s.kind = 'enqueue' and $5::integer is null or s.kind = 'execute' and $7::integer is null)
)
select {schema}.wake(case when $1::text = '*' then array(select queue from {schema}.hungry) else array[$1::text] end)
