-- workers: the reports that have not lapsed.   $1 now
select report::text, seen_at, expires_at, latency_us, samples from {schema}.worker
where expires_at > coalesce($1::timestamptz, clock_timestamp())
