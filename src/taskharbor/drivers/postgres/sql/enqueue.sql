-- enqueue: store jobs, all or none; see the function of that name.
select * from {schema}.enqueue(
    $1::timestamptz, $2::boolean, $3::boolean, $4::text::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::bytea[],
    $10::text[], $11::bytea[], $12::smallint[], $13::text[], $14::timestamptz[], $15::bigint[], $16::bigint[],
    $17::integer[], $18::integer[], $19::bigint[], $20::bigint[])
