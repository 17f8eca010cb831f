-- insert_job: a job that the store makes by itself: a failure job, or a copy. Ready at once.
--   A failure that is told again finds its job already there.
with body as (
    insert into {schema}.job (id, seq, queue, type, payload, created_at, headers, timeout_us, max_attempts,
                              max_stalls, min_backoff_us, max_backoff_us, speculates_on, avoid_worker)
    values ($1::text::uuid, nextval('{schema}.job_seq'), $2, $3, $4, $5, $6::text::json, $7, $8, $9, $10, $11,
            $12::text::uuid, $13)
    on conflict (id) do nothing
    returning id, seq, queue, created_at
)
insert into {schema}.place (id, seq, queue, lane, rank, state, ties, eligible_at, updated_at, fence)
select b.id, b.seq, b.queue, $14, $15, 1, $16, b.created_at, b.created_at, $17 from body b
