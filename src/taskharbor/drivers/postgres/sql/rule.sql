-- rule: the stored settings of a queue.   $1 queue
select settings::text from {schema}.rule where queue = $1::text
