-- Jobs in, out and settled: each statement calls the function of its name, which says what it does. Those of `enqueue` also
-- run on callers' connections, with whatever search_path they have: so every name says where it is.

-- name: enqueue
select * from {schema}.enqueue(
    $1::pg_catalog.timestamptz, $2::pg_catalog.bool, $3::pg_catalog.bool, $4::pg_catalog.text::pg_catalog.uuid[],
    $5::pg_catalog.text[], $6::pg_catalog.text[], $7::pg_catalog.bytea[], $8::pg_catalog.text[],
    $9::pg_catalog.bytea[], $10::pg_catalog.text[], $11::pg_catalog.bytea[], $12::pg_catalog.int2[],
    $13::pg_catalog.text[], $14::pg_catalog.timestamptz[], $15::pg_catalog.int8[], $16::pg_catalog.int8[],
    $17::pg_catalog.int4[], $18::pg_catalog.int4[], $19::pg_catalog.int8[], $20::pg_catalog.int8[])

-- name: enqueue_one
select {schema}.enqueue_one(
    $1::pg_catalog.timestamptz, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text, $4::pg_catalog.text,
    $5::pg_catalog.bytea, $6::pg_catalog.text, $7::pg_catalog.int2, $8::pg_catalog.text, $9::pg_catalog.int8,
    $10::pg_catalog.int4, $11::pg_catalog.int4, $12::pg_catalog.int8, $13::pg_catalog.int8)

-- name: exchange
select * from {schema}.exchange(
    $1::timestamptz, $2::text::uuid[], $3::smallint[], $4::text[]::uuid[], $5::text[], $6::boolean[], $7::bytea[],
    $8::text::json, $9::text::text[], $10::text[], $11::text, $12::integer, $13::bigint, $14::text::uuid, $15::text[],
    $16::integer, $17::bigint, $18::text[], $19::timestamptz, $20::timestamptz, $21::text[], $22::smallint[],
    $23::timestamptz[], $24::bigint[], $25::bigint)

-- name: settle_or_leave
-- inside a transaction of the caller's
select * from {schema}.settle_or_leave(
    $1::timestamptz, $2::text::uuid[], $3::smallint[], $4::text[]::uuid[], $5::text[], $6::boolean[], $7::bytea[],
    $8::text::json)

-- name: extend
select * from {schema}.extend(
    $1::timestamptz, $2::text::uuid[], $3::smallint[], $4::text[]::uuid[], $5::text[], $6::boolean[], $7::text[], $8::bigint)

-- name: read_leases
-- what holds of these jobs, to say why a lease was refused; a token of null: not running.   $1 ids  $2 now
select s.id::text, case when s.state = 3 then s.token::text end, s.key is not null, s.worker, s.ends_at,
       coalesce($2::timestamptz, clock_timestamp())
from unnest($1::text[]) as i(id)
cross join lateral (select * from {schema}.job_state k where k.id = i.id::uuid offset 0) s

-- name: sweep
select * from {schema}.sweep($1::timestamptz, $2::text[], $3::integer)

-- name: promote
select {schema}.promote($1::timestamptz, $2::integer), exists (select from {schema}.owed) or exists (select from {schema}.stripe)
    or exists (select from {schema}.family f where f.deadline <= coalesce($1::timestamptz, clock_timestamp()))

-- name: prune
select {schema}.prune($1::timestamptz, $2::integer), exists (select from {schema}.family_end)
