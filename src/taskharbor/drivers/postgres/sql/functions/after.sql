create or replace function {schema}.after(p_from timestamptz, p_us bigint) returns timestamptz
language sql stable parallel safe
return p_from operator(pg_catalog.+) (p_us::double precision operator(pg_catalog.*) interval '1 microsecond');
