-- waiting_of_key: the waiting or blocked job of a key.   $1 queue   $2 key
select p.id::text from {schema}.place p
where p.queue = $1::text and p.key = $2::bytea and p.key is not null and p.state <= 3 and (p.state = 3) = false
