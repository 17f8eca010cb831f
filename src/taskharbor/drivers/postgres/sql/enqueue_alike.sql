-- enqueue_alike: store usual jobs that differ in id and payload only; see the function of that name.
select {schema}.enqueue_alike(
    $1::pg_catalog.timestamptz, $2::pg_catalog.text::pg_catalog.uuid[], $3::pg_catalog.text, $4::pg_catalog.text,
    $5::pg_catalog.bytea[], $6::pg_catalog.text, $7::pg_catalog.int2, $8::pg_catalog.text, $9::pg_catalog.int8,
    $10::pg_catalog.int4, $11::pg_catalog.int4, $12::pg_catalog.int8, $13::pg_catalog.int8)
