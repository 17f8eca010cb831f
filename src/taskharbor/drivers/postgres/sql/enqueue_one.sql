-- enqueue_one: store one usual job; see the function of that name. Every name says where it is: blocking callers'
-- connections have the search_path of their role.
select {schema}.enqueue_one(
    $1::pg_catalog.timestamptz, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text, $5::pg_catalog.bytea,
    $6::pg_catalog.text, $7::pg_catalog.int2, $8::pg_catalog.text, $9::pg_catalog.int8, $10::pg_catalog.int4,
    $11::pg_catalog.int4, $12::pg_catalog.int8, $13::pg_catalog.int8)
