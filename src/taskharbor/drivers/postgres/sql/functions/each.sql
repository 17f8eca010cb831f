-- An array with one element for all, as one with an element each.
create or replace function {schema}.each(p_values anyarray, p_count integer) returns anyarray
language sql immutable parallel safe set search_path = {schema}, pg_temp as $$
    select case when cardinality(p_values) = 1 then array_fill(p_values[1], array[p_count]) else p_values end
$$;
