-- cancelled_of: running jobs of these workers that were cancelled; whoever did not listen is told now.   $1 workers
select p.id::text, p.claimed_by from {schema}.place p
where p.state = 3 and p.cancel_requested and p.claimed_by = any($1::text[])
