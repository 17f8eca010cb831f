-- lock_jobs: lock jobs and what is tied to them.   $1 ids   $2 tokens of their leases, or null
select o_id from {schema}.lock_jobs($1::text[], $2::text[])
