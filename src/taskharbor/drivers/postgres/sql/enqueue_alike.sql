-- enqueue_alike: store usual jobs that differ in id and payload only; see the function of that name.
select {schema}.enqueue_alike(
    $1::timestamptz, $2::text::uuid[], $3::text, $4::text, $5::bytea[], $6::text, $7::smallint, $8::text, $9::bigint,
    $10::integer, $11::integer, $12::bigint, $13::bigint)
