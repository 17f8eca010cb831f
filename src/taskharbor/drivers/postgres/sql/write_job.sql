-- write_job: what a job is after a merge or an edited requeue.
update {schema}.job set
    type = $2, payload = $3, headers = $4::text::json, timeout_us = $5, max_attempts = $6, max_stalls = $7,
    min_backoff_us = $8, max_backoff_us = $9
where id = $1::text::uuid
