-- enqueue: store jobs, all or none; see the function of that name.
select * from {schema}.enqueue(
    $1::timestamptz, $2::boolean, $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::bytea[], $9::text[],
    $10::bytea[], $11::smallint[], $12::text[], $13::timestamptz[], $14::bigint[], $15::bigint[], $16::integer[],
    $17::integer[], $18::bigint[], $19::bigint[])
