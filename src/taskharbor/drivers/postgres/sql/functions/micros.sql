create or replace function {schema}.micros(p_at timestamptz) returns bigint
language sql stable parallel safe
return (extract(epoch from p_at) operator(pg_catalog.*) 1000000::numeric)::bigint;
