-- exchange: settle acks and hand out jobs in one statement; see the function of that name.
select * from {schema}.exchange(
    $1::timestamptz, $2::text::uuid[], $3::smallint[], $4::text[], $5::text[], $6::bytea[], $7::text::text[], $8::text[], $9::text,
    $10::integer, $11::bigint, $12::text, $13::text[], $14::integer, $15::bigint, $16::boolean, $17::text[],
    $18::timestamptz, $19::text[], $20::smallint[], $21::timestamptz[], $22::bigint[], $23::bigint)
