-- enqueue: store jobs, all or none; see the function of that name. It also runs on callers' connections, with
-- whatever search_path they have: so every name says where it is.
select * from {schema}.enqueue(
    $1::pg_catalog.timestamptz, $2::pg_catalog.bool, $3::pg_catalog.bool, $4::pg_catalog.text::pg_catalog.text[],
    $5::pg_catalog.text[], $6::pg_catalog.text[], $7::pg_catalog.bytea[], $8::pg_catalog.text[],
    $9::pg_catalog.bytea[], $10::pg_catalog.text[], $11::pg_catalog.bytea[], $12::pg_catalog.int2[],
    $13::pg_catalog.text[], $14::pg_catalog.timestamptz[], $15::pg_catalog.int8[], $16::pg_catalog.int8[],
    $17::pg_catalog.int4[], $18::pg_catalog.int4[], $19::pg_catalog.int8[], $20::pg_catalog.int8[])
