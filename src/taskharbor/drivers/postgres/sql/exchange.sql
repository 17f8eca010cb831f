-- exchange: settle acks and hand out jobs in one statement; see the function of that name.
select * from {schema}.exchange(
    $1::timestamptz, $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text, $9::integer,
    $10::bigint, $11::text, $12::text[], $13::integer, $14::bigint, $15::boolean, $16::boolean,
    $17::timestamptz, $18::smallint[], $19::timestamptz[], $20::bigint[])
