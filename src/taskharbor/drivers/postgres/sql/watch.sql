-- watch: may this session be told of work?   $1 who waits for the same
select {schema}.watch($1::text)
