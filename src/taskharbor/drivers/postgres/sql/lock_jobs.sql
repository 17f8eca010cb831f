-- lock_jobs: lock jobs and what is tied to them.   $1 ids
select o_id from {schema}.lock_jobs($1::text[])
