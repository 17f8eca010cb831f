-- write_place: where a job stands after a step.
select {schema}.write_place(
    $1::text::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
    $24, $25::text::json, $26::text::json)
