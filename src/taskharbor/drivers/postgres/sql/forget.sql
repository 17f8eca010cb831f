-- forget: delete jobs with everything that stands for them.   $1 ids
select {schema}.forget($1::text[]::uuid[])
