-- insert_job: a job that the store makes by itself: a failure job, or a copy. Ready at once.
--   A failure that is told again finds its job already there. $19: its seq, 0 for the next one.
with body as (
    insert into {schema}.job (id, seq, queue, type, payload, created_at, headers, timeout_us, max_attempts,
                              max_stalls, min_backoff_us, max_backoff_us, speculates_on, avoid_worker, lane, rank, run_at)
    values ($1::text::uuid, case when $19::bigint > 0 then $19 else nextval('{schema}.job_seq') end, $2, $3, $4, $5, $6::text::json, $7, $8, $9, $10, $11,
            $12::text::uuid, $13, $14, $15, $18)
    on conflict (id) do nothing
    returning *
), placed as (
    insert into {schema}.place (id, seq, queue, lane, rank, state, ties, eligible_at, run_at, updated_at, fence)
    select b.id, b.seq, b.queue, b.lane, b.rank, 1, $16, coalesce(b.run_at, b.created_at), b.run_at, b.created_at, $17
    from body b
    returning *
)
insert into {schema}.ready (seq, eligible_at, id, rank, ties, is_timed, is_plain, queue, lane, line)
select p.seq, p.eligible_at, p.id, p.rank, p.ties, p.run_at is not null, false, p.queue, p.lane,
       p.queue || '/' || p.lane || '/' || $3::text
from placed p
