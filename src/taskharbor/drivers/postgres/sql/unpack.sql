-- unpack: these jobs have places of their own from now on, if they stand still.   $1 ids   $2 tokens or null
select {schema}.unpack($1::text[]::uuid[], $2::text[])
