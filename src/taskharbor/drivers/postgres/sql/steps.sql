-- The rarer steps: they lock what takes part, drivers/lifecycle.py decides about the records, and these write them back.

-- name: lock_jobs
-- $1 ids  $2 queue and $3 key of a key, or nulls  $4 now
select {columns}, l.o_at, l.o_facts
from {schema}.lock_jobs($1::text[]::uuid[], $2::text, $3::bytea, $4::timestamptz) l
cross join lateral (select (l.o_state).*) s
cross join lateral (select (l.o_job).*) j
cross join lateral (select (l.o_history).*) h
cross join (select null::uuid as id, false as is_open, null::json as bonds, null::json as family, null::uuid as root) f

-- name: next_seq
select nextval('{schema}.job_seq')

-- name: write_state
select {schema}.write_state(
    $1::text::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::uuid, $16, $17, $18, $19, $20, $21,
    $22, $23, $24::text::json, $25::text::json)

-- name: write_job
-- what a job is after a merge or an edited requeue
update {schema}.job set
    type = $2, payload = $3, headers = $4::text::json, timeout_us = $5, max_attempts = $6, max_stalls = $7,
    min_backoff_us = $8, max_backoff_us = $9
where id = $1::text::uuid

-- name: write_key
select {schema}.write_key($1, $2, $3::text::uuid, $4::text::uuid)

-- name: insert_job
select {schema}.insert_job(
    $1::text::uuid, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17::text::uuid, $18, $19, $20)

-- name: drop_jobs
select {schema}.drop_jobs($1::text[]::uuid[])

-- name: merge_away
-- an id leads to another job from now on, with all that led to it.   $1 id  $2 target
with followers as (update {schema}.alias set target = $2::text::uuid where target = $1::text::uuid),
     keys as (update {schema}.idempotency set job_id = $2::text::uuid where job_id = $1::text::uuid)
insert into {schema}.alias values ($1::text::uuid, $2::text::uuid)

-- name: lock_idempotency
-- the idempotency keys of jobs, before any of them is written.   $1 ids
select {schema}.lock_idempotency($1::text[]::uuid[])

-- name: end_keys
-- a job has ended; until when its idempotency keys are remembered.   $1 id  $2 until
update {schema}.idempotency set ends_at = $2 where job_id = $1::text::uuid

-- name: revive_keys
-- a requeued job keeps the idempotency keys that are still remembered.   $1 id  $2 now
with lapsed as (delete from {schema}.idempotency where job_id = $1::text::uuid and ends_at <= $2)
update {schema}.idempotency set ends_at = null where job_id = $1::text::uuid and ends_at > $2

-- name: lock
-- deal with one thing at a time, until the transaction ends.   $1 kind  $2 name  $3 key or null
select pg_advisory_xact_lock({schema}.lock_id($1::text, $2::text, $3::bytea))

-- name: wake
-- jobs became ready in these queues.   $1 queues
select {schema}.wake($1::text[])

-- name: ring
-- the same, whether or not a worker has asked to be woken.   $1 queues
select {schema}.wake($1::text[], true)

-- name: notify_cancel
-- a running job was cancelled; its worker learns it at once.   $1 job  $2 worker
select pg_notify({channel}, 'cancel ' || $1::text || ' ' || $2::text)
