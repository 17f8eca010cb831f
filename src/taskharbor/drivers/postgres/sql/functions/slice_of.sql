-- slice_of: the five minutes that an instant is in, by their end, which is in them.
create or replace function {schema}.slice_of(p_at timestamptz) returns timestamptz
language sql stable parallel safe
return pg_catalog.date_bin(interval '5 min', p_at + interval '299.999999 s', timestamptz 'epoch');
