-- unwatch: let another session be told of work.   $1 who waits for the same   $2 the place that was held
select {schema}.unwatch($1::text, $2::integer)
