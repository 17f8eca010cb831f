-- worker: what is known of a worker whose report has not lapsed; one row.   $1 worker   $2 now
--   latency, samples, the deciding instant
select w.latency_us, coalesce(w.samples, 0), at.now
from (select coalesce($2::timestamptz, clock_timestamp()) as now) at
left join {schema}.worker w on w.worker_id = $1::text and w.expires_at > at.now
