-- report_worker: a worker lives.   $1 id  $2 report  $3 seen at  $4 expires at  $5 latency  $6 samples
insert into {schema}.worker values ($1, $2::text::json, $3, $4, $5, $6)
on conflict (worker_id) do update set
    report = excluded.report, seen_at = excluded.seen_at, expires_at = excluded.expires_at,
    latency_us = excluded.latency_us, samples = excluded.samples
