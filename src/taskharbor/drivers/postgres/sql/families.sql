-- Steps of families: they lock and read what takes part, drivers/families.py decides, and one statement writes it back. Enqueues
-- run on callers' connections, too, with whatever search_path they have: so every name says where it is.

-- name: lock_step
-- $1 ids  $2 queues and $3 keys of new jobs  $4 idempotency keys  $5 queues with rates  $6 how many numbers  $7 now
select o from {schema}.lock_step(
    $1::pg_catalog.text::pg_catalog.uuid[], $2::pg_catalog.text[], $3::pg_catalog.bytea[], $4::pg_catalog.text::pg_catalog.jsonb,
    $5::pg_catalog.text[], $6::pg_catalog.int4, $7::pg_catalog.timestamptz) as o

-- name: widen_step
-- $1 ids  $2 roots that are locked  $3 may it wait?
select o from {schema}.widen_step(
    $1::pg_catalog.text::pg_catalog.uuid[], $2::pg_catalog.text::pg_catalog.uuid[], $3::pg_catalog.bool) as o

-- name: family_page
select o_id, o_seq from {schema}.family_page(
    $1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.int8, $4::pg_catalog.int4)

-- name: admit_families
-- spend the enqueue rates for these new jobs; a row when one refuses them.   $1 ids  $2 their queues  $3 now
select a.queue, a.result, a.detail from {schema}.admit(
    $1::pg_catalog.text::pg_catalog.uuid[], $2::pg_catalog.text[], null, $3::pg_catalog.timestamptz) as a

-- name: write_families
select {schema}.write_families($1::pg_catalog.text::pg_catalog.jsonb)

-- name: add_children
-- $1 now  $2 are they new?  $3 ids  $4 numbers  $5 parents  $6 roots  $7 …: as in enqueue
select {schema}.add_children(
    $1::pg_catalog.timestamptz, $2::pg_catalog.bool, $3::pg_catalog.text::pg_catalog.uuid[], $4::pg_catalog.text::pg_catalog.int8[],
    $5::pg_catalog.text::pg_catalog.uuid[], $6::pg_catalog.text::pg_catalog.uuid[], $7::pg_catalog.text[], $8::pg_catalog.text[],
    $9::pg_catalog.bytea[], $10::pg_catalog.text[], $11::pg_catalog.int2[], $12::pg_catalog.text[],
    $13::pg_catalog.timestamptz[], $14::pg_catalog.int8[], $15::pg_catalog.int4[], $16::pg_catalog.int4[],
    $17::pg_catalog.int8[], $18::pg_catalog.int8[])

-- name: take_note
-- a new note under its lease.   $1 now  $2 job  $3 token  $4 worker  $5 name  $6 data
select o_at, o_version from {schema}.take_note(
    $1::timestamptz, $2::text::uuid, $3::text::uuid, $4::text, $5::text, $6::bytea)

-- name: late_families
-- jobs whose deadline has passed, the oldest first.   $1 now  $2 how many
select f.id::text from {schema}.family f
where f.deadline <= coalesce($1::timestamptz, clock_timestamp()) order by f.deadline limit $2::integer

-- name: count_owed
-- how many consequences wait, up to a limit.
select count(*) from (select from {schema}.owed limit $1::integer) o

-- name: over_families
-- of these parents those that have no open children left, but are not over.   $1 ids
select o from {schema}.over_families($1::text::uuid[]) as o

-- name: parents_over
-- parents that nothing but a judgement is missing to; and the last one looked at, if there are more.   $1 behind this one  $2 how many
select o_over, o_last from {schema}.parents_over($1::text::uuid, $2::integer)

-- name: next_owed
-- the oldest that no other call carries out, locked, with the jobs that each concerns.   $1 how many, of both
with o as materialized (
    select no, kind, job_id, place from {schema}.owed order by no limit $1::integer for update skip locked)
select o.no, o.kind, o.job_id::text, o.place, p.ids, p.seqs from o
cross join lateral (
    select array_agg(q.o_id) as ids, array_agg(q.o_seq) as seqs
    from {schema}.family_page(o.kind, o.job_id, o.place, $1::integer) q) p
order by o.no

-- name: due_families
select * from {schema}.due_families($1::timestamptz, $2::integer)
